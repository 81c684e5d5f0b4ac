"""The neurons of a model, and sets of them."""

import operator

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.semantic import CriticalNeurons, masked
from nnslicer_tf.semantic.neurons import neuron_layers
from support.classifiers import MODELS, instrumented, make, samples

EXPECTED = {
    "perceptron": {"a": (7, "re_lu"), "b": (5, "b")},
    "convolutional": {"c1": (4, "re_lu"), "c2": (5, "activation"), "d": (6, "d")},
    "residual": {
        "c1": (4, "re_lu"),
        "c2": (4, "re_lu_1"),
        "c3": (4, "batch_normalization_1"),
        "c4": (3, "c4"),
    },
    # The gate is left out: without its parameters it would still let through one half.
    "inverted": {
        "expand": (6, "activation_1"),
        "squeeze": (3, "squeeze"),
        "project": (4, "project"),
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_layers_with_neurons(name):
    keras.utils.clear_session()
    found = {k: (v.units, v.value) for k, v in neuron_layers(instrumented(name)).items()}
    assert found == EXPECTED[name]


@pytest.mark.parametrize("name", MODELS)
def test_a_masked_neuron_has_the_value_zero_and_no_other_does(name):
    model = make(name)
    layers_ = neuron_layers(nns.InstrumentedModel(model))
    x, _ = samples(model, 20)
    for layer in layers_.values():
        keep = np.arange(layer.units) % 2 == 0
        zeroed = nns.InstrumentedModel(masked(model, {layer.name: keep}))
        value = zeroed.capture(x, of=[layer.value])[layer.value].reshape(-1, layer.units)
        same = nns.InstrumentedModel(model).capture(x, of=[layer.value])[layer.value]
        assert not value[:, ~keep].any()
        assert value[:, keep].any()
        np.testing.assert_array_equal(value[:, keep], same.reshape(-1, layer.units)[:, keep])


def test_a_working_copy_starts_anew_with_every_mask():
    model = make("convolutional")
    x, _ = samples(model, 5)
    copy = masked(model, {"c1": np.array([True, False, False, False])})
    again = masked(model, {"d": np.ones(6, bool)}, into=copy)
    assert again is copy
    np.testing.assert_array_equal(again(x), model(x))


def test_shared_layers_and_grouped_convolutions_have_no_neurons():
    inputs = keras.Input((4, 4, 4))
    shared = layers.Conv2D(4, 1, name="shared")
    x = layers.Conv2D(4, 3, groups=2, name="grouped")(shared(shared(inputs)))
    x = layers.Conv2D(2, 2, name="plain")(x)
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))
    assert list(neuron_layers(nns.InstrumentedModel(model))) == ["plain"]


def output_layer(im):
    return list(neuron_layers(im, classes=True).values())[-1]


def test_the_output_layer_is_that_of_the_logits():
    assert output_layer(instrumented("convolutional")).sum == "probabilities:pre"
    assert output_layer(instrumented("perceptron")).units == 3
    hidden = list(neuron_layers(instrumented("perceptron")))
    assert list(neuron_layers(instrumented("perceptron"), classes=True)) == [*hidden, "logits"]


def test_the_output_layer_may_be_a_convolution_that_is_flattened():
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            layers.Conv2D(5, 2, name="hidden"),
            layers.GlobalAveragePooling2D(keepdims=True),
            layers.Conv2D(3, 1, name="classes"),
            layers.Flatten(),
        ]
    )
    im = nns.InstrumentedModel(model)
    assert (output_layer(im).name, output_layer(im).units) == ("classes", 3)
    assert list(neuron_layers(im)) == ["hidden"]
    positions = keras.Sequential([keras.Input((4, 4, 1)), layers.Conv2D(3, 3), layers.Flatten()])
    with pytest.raises(nns.errors.UnsupportedLayerError, match="a unit for each class"):
        output_layer(nns.InstrumentedModel(positions))


def test_models_without_neurons_are_refused():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    with pytest.raises(nns.errors.UnsupportedLayerError, match="no layer with neurons"):
        neuron_layers(nns.InstrumentedModel(model))
    image = keras.Sequential([keras.Input((4, 4, 1)), layers.Conv2D(3, 2)])
    with pytest.raises(nns.errors.UnsupportedLayerError, match="a unit for each class"):
        output_layer(nns.InstrumentedModel(image))


A = CriticalNeurons({"a": np.array([True, False, True]), "b": np.array([False, True])})
B = CriticalNeurons({"a": np.array([True, True, False]), "b": np.array([False, False])})


def test_sets_of_neurons():
    assert (A | B)["a"].tolist() == [True, True, True]
    assert (A & B)["a"].tolist() == [True, False, False]
    assert (~A)["b"].tolist() == [True, False]
    assert A != B
    assert A | CriticalNeurons({"a": np.zeros(3, bool), "b": np.zeros(2, bool)}) == A
    assert (A.count, A.total) == (3, 5)
    assert repr(A) == "CriticalNeurons(3 of 5 neurons: a 2/3, b 1/2)"
    assert A.to_frame().to_dict("list") == {
        "layer": ["a", "b"],
        "neurons": [3, 2],
        "critical": [2, 1],
        "share": [2 / 3, 0.5],
    }


def test_a_set_is_its_own_and_does_not_change():
    mask = np.array([True, False])
    kept = CriticalNeurons({"a": mask})
    mask[:] = False
    assert kept["a"].tolist() == [True, False]
    with pytest.raises(ValueError, match="read-only"):
        kept["a"][0] = False


def test_a_set_is_saved_and_loaded(tmp_path):
    path = tmp_path / "critical.npz"
    odd = CriticalNeurons({"outer/inner": np.array([True, False]), "b": np.ones(3, bool)})
    odd.save(path)
    assert CriticalNeurons.load(path) == odd
    path.write_bytes(b"nothing")
    with pytest.raises(nns.errors.CorruptFileError, match="critical neurons"):
        CriticalNeurons.load(path)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({}, "at least one layer"),
        ({"a": np.ones(3)}, "vector of bools"),
        ({"a": np.ones((2, 2), bool)}, "vector of bools"),
        ({1: np.ones(2, bool)}, "its key a layer's name. Received: bool of shape .* for 1"),
    ],
)
def test_bad_masks_are_refused(masks, message):
    with pytest.raises(nns.errors.InvalidArgumentError, match=message):
        CriticalNeurons(masks)


def test_sets_of_other_models_do_not_mix():
    with pytest.raises(nns.errors.InvalidArgumentError, match="Only neurons of one model"):
        _ = A | CriticalNeurons({"a": np.ones(3, bool)})
    for other in (3, None, {"a": np.ones(3, bool)}):
        for combine in (operator.and_, operator.or_):
            with pytest.raises(TypeError, match="unsupported operand"):
                combine(A, other)
