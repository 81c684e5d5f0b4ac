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


@pytest.mark.parametrize("units", [3, 1])
@pytest.mark.parametrize("options", [{"theta": 0}, {"theta": 0.3}, {"contribution": "amount"}])
def test_predicted_classes_of_a_map_are_those_of_its_positions(units, options):
    from support.outputs import images, u_net

    im, x = nns.InstrumentedModel(u_net(units, "softmax" if units > 1 else "sigmoid")), images(40)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, x), workers=0, progress=False, **options)
    found = slicer.slice_each(x[:36])  # more than few, so that θ = 0 runs on the backend
    labels = im.logits(x[:36]).argmax(axis=-1).reshape(36, -1)
    for i in (0, 35):
        places = units * np.arange(labels.shape[1]) + labels[i]
        one = slicer.slice(x[i : i + 1], {"map": places})
        for name, values in one.synapses.items():
            np.testing.assert_allclose(found[i].synapses[name], values, rtol=1e-4, atol=1e-4)
    assert (found.predicted == -1).all()  # no single class
    channels = nns.Slicer(im, slicer.profile, granularity="channel", progress=False)
    with pytest.raises(nns.errors.CriterionError, match="a map and single activations"):
        channels.slice(x, {"map": "predicted"})


def test_which_output_is_meant_is_named():
    from support.outputs import autoencoder, images, two_outputs

    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    im = nns.InstrumentedModel(two_outputs())
    slicer = nns.Slicer(im, nns.Profile.from_data(im, x), 0, progress=False)
    with pytest.raises(nns.errors.CriterionError, match=r"outputs=\{'kind': 'predicted'\}"):
        slicer.slice(x)
    one = im.of_output("kind")
    alone = nns.Slicer(one, nns.Profile.from_data(one, x), 0, progress=False).slice(x)
    for name, values in slicer.slice(x, {"kind": "predicted"}).synapses.items():
        np.testing.assert_array_equal(values, alone.synapses.get(name, np.zeros_like(values)))
    model = autoencoder()
    model.compile("adam", "mse")
    im = nns.InstrumentedModel(model)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, images()), 0, progress=False)
    with pytest.raises(nns.errors.CriterionError, match="needs an output vector of classes"):
        slicer.slice(images(2))


def test_a_walk_cannot_end_before_it_begins():
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, "relu", name="d")(inputs)
    im = nns.InstrumentedModel(keras.Model(inputs, keras.layers.Dense(2, name="o")(hidden)))
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, x, progress=False), 0.0, progress=False)
    for outputs in ({"d": "all"}, {"d": [0]}):
        alone = slicer.slice(x, nns.Criterion(outputs, until="d"))
        assert alone == slicer.slice(x, outputs) and alone.synapses["d"].any()
        with pytest.raises(nns.errors.CriterionError, match="from d does not reach until='o'"):
            slicer.slice(x, nns.Criterion(outputs, until="o"))
