"""Restructured models: smaller, with the outputs of the masked ones."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.semantic import (
    CriticalNeurons,
    SemanticSlicer,
    masked,
    restructure,
)
from nnslicer_tf.semantic.neurons import neuron_layers
from support.classifiers import MODELS, make, samples


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_a_restructured_model_has_the_outputs_of_the_masked_one(name, seed):
    model = make(name, seed)
    rng = np.random.default_rng(seed)
    found = neuron_layers(nns.InstrumentedModel(model))
    masks = {k: rng.random(v.units) < 0.6 for k, v in found.items()}
    critical = CriticalNeurons({k: m if m.any() else ~m for k, m in masks.items()})
    x, _ = samples(model, 16)
    small = restructure(model, critical)
    zeroed = masked(model, critical)
    np.testing.assert_allclose(small(x), zeroed(x), rtol=1e-4, atol=1e-5)
    assert small.count_params() < model.count_params()
    assert not np.allclose(zeroed(x), model(x), atol=1e-3)


def test_a_size_leaves_the_masked_model_as_it_is():
    model = make("perceptron")
    x, _ = samples(model, 16)
    zeroed = masked(model, {"a": np.arange(7) < 3})
    outputs = zeroed(x)
    masked(model, {"b": np.arange(5) < 2})
    np.testing.assert_array_equal(zeroed(x), outputs)


def test_a_multilayer_perceptron_keeps_what_the_formula_says():
    small = restructure(make("perceptron"), {"a": np.arange(7) < 3, "b": np.arange(5) < 2})
    assert small.count_params() == (6 + 1) * 3 + (3 + 1) * 2 + (2 + 1) * 3


def test_a_real_model():
    """The trained digits network without the neurons outside its semantic slice."""
    model = zoo.load("digits_cnn")
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    im = nns.InstrumentedModel(model)
    critical = SemanticSlicer(im, train.x, train.y, centred=True).semantic_slice(0.98)
    small = restructure(model, critical)
    zeroed = masked(model, critical)
    np.testing.assert_allclose(small(test.x), zeroed(test.x), rtol=1e-4, atol=1e-4)
    assert small.count_params() < 0.95 * model.count_params()
    assert zoo.accuracy(small, test) > zoo.accuracy(model, test) - 0.03


def test_bad_masks_are_refused():
    model = make("perceptron")
    with pytest.raises(InvalidArgumentError, match="Unknown layer with neurons 'c'"):
        restructure(model, {"c": np.ones(7, bool)})
    with pytest.raises(InvalidArgumentError, match="has 7 neurons"):
        restructure(model, {"a": np.ones(6, bool)})
    with pytest.raises(InvalidArgumentError, match="would have no neurons"):
        restructure(model, {"a": np.zeros(7, bool)})
    with pytest.raises(InvalidArgumentError, match="Unknown layer with neurons 'logits'"):
        masked(model, {"logits": np.ones(3, bool)})
