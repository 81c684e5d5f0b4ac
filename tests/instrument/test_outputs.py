"""What a model's output says about classes, for each way in which models end."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.errors import InvalidArgumentError

X = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


def model_of(*tail, units=3):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), layers.Dense(units, name="scores"), *tail])


def functional(tail, units=3):
    keras.utils.set_random_seed(0)
    x = keras.Input((4,))
    return keras.Model(x, tail(layers.Dense(units, name="scores")(x)))


ENDINGS = {
    "logits": (lambda: model_of(), ""),
    "layer": (lambda: model_of(layers.Softmax()), "softmax"),
    "activation": (lambda: model_of(layers.Activation("softmax")), "softmax"),
    "operation": (lambda: functional(ops.softmax), "softmax"),
    "float32": (
        lambda: model_of(layers.Softmax(), layers.Activation("linear", dtype="float32")),
        "softmax",
    ),
    "reshaped": (lambda: model_of(layers.Softmax(), layers.Reshape((3, 1))), "softmax"),
    "flattened": (lambda: model_of(layers.Softmax(), layers.Flatten()), "softmax"),
    "axis of size 1": (
        lambda: model_of(layers.Reshape((1, 3)), layers.Softmax(), layers.Flatten()),
        "softmax",
    ),
    "cast": (lambda: functional(lambda s: ops.cast(ops.softmax(s), "float32")), "softmax"),
    "column": (lambda: functional(lambda s: ops.softmax(s)[:, :, None]), "softmax"),
    "dropout": (lambda: model_of(layers.Softmax(), layers.Dropout(0.5)), "softmax"),
    "nested": (
        lambda: keras.Sequential([keras.Input((4,)), model_of(layers.Softmax())]),
        "softmax",
    ),
    "log_softmax": (lambda: model_of(layers.Activation("log_softmax")), "log_softmax"),
    "log_softmax operation": (lambda: functional(ops.log_softmax), "log_softmax"),
    "mean": (lambda: functional(lambda s: (ops.softmax(s) + ops.softmax(-s)) / 2), "distribution"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_probabilities_are_keras_own(name):
    build, final = ENDINGS[name]
    model = build()
    im = nns.InstrumentedModel(model)
    assert im.classes.final == final
    assert im.classes.count == 3
    outputs = model.predict(X, verbose=0)
    expected = outputs.reshape(-1, 3).astype(np.float64)
    if final == "log_softmax":
        expected = np.exp(expected)
    if not final:
        expected = np.asarray(ops.softmax(expected))
    np.testing.assert_allclose(im.classes.probabilities(im.predict(X)), expected, atol=1e-6)
    np.testing.assert_array_equal(im.classes.from_outputs(im.predict(X)), expected.argmax(axis=1))
    np.testing.assert_array_equal(im.classes.from_logits(im.logits(X)), expected.argmax(axis=1))
    if final not in ("distribution", "") and name != "nested":
        scores = keras.Model(model.inputs, model.get_layer("scores").output)
        np.testing.assert_allclose(im.logits(X), scores.predict(X, verbose=0), atol=1e-6)


def test_an_axis_of_size_1_before_the_softmax_makes_no_map():
    im = nns.InstrumentedModel(ENDINGS["axis of size 1"][0]())
    assert (im.logit_operation, im.classes.shape) == ("scores", (3,))
    twin = nns.InstrumentedModel(ENDINGS["layer"][0]())
    slices = []
    for m in (im, twin):
        profile = nns.Profile.from_data(m, X, progress=False)
        slices.append(
            nns.Slicer(m, profile, theta=0.1, progress=False).slice(X, outputs="predicted")
        )
    np.testing.assert_array_equal(slices[0].synapses["scores"], slices[1].synapses["scores"])


def test_a_reordering_is_not_walked_through():
    tail = (layers.Softmax(axis=-1), layers.Reshape((2, 2)), layers.Permute((2, 1)))
    im = nns.InstrumentedModel(model_of(*tail, layers.Flatten(), units=4))
    assert im.logit_operation == im.output_operations[0]


@pytest.mark.parametrize(
    "tail",
    [
        (layers.Activation("sigmoid"),),
        (layers.Activation("sigmoid"), layers.Activation("linear", dtype="float32")),
        (layers.Activation("sigmoid"), layers.Reshape(())),
    ],
)
def test_one_sigmoid_is_two_classes(tail):
    model = model_of(*tail, units=1)
    classes = nns.InstrumentedModel(model).classes
    assert classes.is_binary
    assert classes.count == 2
    p = model.predict(X, verbose=0).reshape(-1).astype(np.float64)
    assert 0 < (p > 0.5).sum() < len(X)
    outputs = model.predict(X, verbose=0)
    np.testing.assert_array_equal(classes.from_outputs(outputs), p > 0.5)
    np.testing.assert_allclose(
        classes.probabilities(outputs), np.stack([1 - p, p], axis=1), atol=1e-6
    )
    z = nns.InstrumentedModel(model).logits(X).reshape(-1)
    np.testing.assert_array_equal(classes.scores(z), np.stack([-z, z], axis=1))
    assert classes.neuron(0) == (0, -1)
    assert classes.neuron(1) == (0, 1)
    with pytest.raises(InvalidArgumentError, match="2 classes"):
        classes.neuron(2)


def test_several_sigmoids_are_independent_labels():
    model = model_of(layers.Activation("sigmoid"))
    classes = nns.InstrumentedModel(model).classes
    assert classes.is_multi_label
    assert classes.count == 3
    outputs = model.predict(X, verbose=0)
    np.testing.assert_allclose(classes.probabilities(outputs), outputs, atol=1e-7)
    np.testing.assert_array_equal(classes.from_outputs(outputs), outputs.argmax(axis=1))


def test_one_plain_output_is_a_number():
    classes = nns.InstrumentedModel(model_of(units=1)).classes
    assert classes.is_number
    with pytest.raises(InvalidArgumentError, match="predicts a number"):
        classes.probabilities(np.ones((2, 1)))


def test_maps_have_a_class_at_each_position():
    x = keras.Input((5, 5, 2))
    model = keras.Model(x, layers.Conv2D(3, 1, activation="softmax")(x))
    images = np.random.default_rng(0).normal(size=(2, 5, 5, 2)).astype(np.float32)
    outputs = model.predict(images, verbose=0)
    classes = nns.InstrumentedModel(model).classes
    assert classes.count == 3
    np.testing.assert_array_equal(classes.from_outputs(outputs), outputs.argmax(axis=-1))


def test_a_softmax_over_the_first_axis():
    x = keras.Input((3, 5))
    model = keras.Model(x, layers.Softmax(axis=1)(layers.Dense(5)(x)))
    values = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    outputs = model.predict(values, verbose=0)
    classes = nns.InstrumentedModel(model).classes
    assert classes.count == 3
    np.testing.assert_array_equal(classes.from_outputs(outputs), outputs.argmax(axis=1))
    np.testing.assert_allclose(classes.probabilities(outputs).sum(axis=-1), 1, atol=1e-5)


def test_each_output_has_its_own_classes():
    x = keras.Input((4,))
    binary = layers.Dense(1, activation="sigmoid", name="binary")(x)
    kinds = layers.Dense(3, activation="softmax", name="kinds")(x)
    im = nns.InstrumentedModel(keras.Model(x, [binary, kinds]))
    assert im.classes.count == 2
    assert im.classes_of("kinds").count == 3


@pytest.mark.parametrize("function", ["softmax", "sigmoid"])
def test_some_of_the_probabilities_get_no_second_softmax(function):
    model = functional(lambda scores: layers.Activation(function)(scores)[:, :2])
    im = nns.InstrumentedModel(model)
    outputs = model.predict(X, verbose=0)
    np.testing.assert_allclose(im.classes.probabilities(im.predict(X)), outputs, atol=1e-6)
    np.testing.assert_array_equal(im.classes.from_outputs(im.predict(X)), outputs.argmax(axis=1))
