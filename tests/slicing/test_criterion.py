"""Where walks end, and what a message says about the neurons of one sigmoid."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns


def slicer_of(model):
    x = np.random.default_rng(0).normal(size=(8, *model.input_shape[1:])).astype(np.float32)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    return nns.Slicer(im, profile, theta=0, workers=0, progress=False), x[:1]


@pytest.fixture(scope="module")
def attention():
    """A slicer of a dense layer, an attention, and a dense layer; and a sample."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3, 4))
    x = layers.Dense(4, "relu", name="first")(inputs)
    x = layers.MultiHeadAttention(2, 2, name="mha")(x, x)
    outputs = layers.Dense(2, "relu", name="second")(layers.Flatten()(x))
    return slicer_of(keras.Model(inputs, outputs))


@pytest.mark.parametrize(
    ("until", "walked"),
    [
        ("first", {"first", "second", "mha/query", "mha/key", "mha/value", "mha/output"}),
        ("second", {"second"}),  # with its kernel, though its activation is an operation, too
        ("second:pre", {"second"}),
        ("mha/context", {"mha/output", "second"}),  # an operation inside a layer
        ("mha", {"mha/query", "mha/key", "mha/value", "mha/output", "second"}),
    ],
)
def test_a_walk_ends_with_a_layer_or_an_operation(attention, until, walked):
    slicer, x = attention
    found = slicer.slice(x, nns.Criterion({"second:pre": "all"}, until=until))
    assert {name for name, values in found.synapses.items() if values.any()} == walked


def test_what_one_sigmoid_means_is_said_about_its_neuron_alone():
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2, name="inner"), layers.Dense(1, "sigmoid", name="last")]
    )
    slicer, x = slicer_of(model)
    for outputs, is_said in (([1], True), ({"last": [1]}, True), ({"inner": [2]}, False)):
        with pytest.raises(nns.errors.CriterionError, match="neuron") as caught:
            slicer.slice(x, outputs)
        assert ("A single sigmoid has one neuron for both" in str(caught.value)) == is_said
    classes = keras.Sequential([keras.Input((3,)), layers.Dense(2, "softmax")])
    slicer, x = slicer_of(classes)
    with pytest.raises(nns.errors.CriterionError, match=r"indexed 0 to 1. Received: \[2\].$"):
        slicer.slice(x, [2])
