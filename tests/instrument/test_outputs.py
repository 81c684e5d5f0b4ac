"""What a model's output says about classes, for each way in which models end."""

from functools import partial

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
    outputs = model(X).numpy()
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
        np.testing.assert_allclose(im.logits(X), scores([X]).numpy(), atol=1e-6)


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
    p = model(X).numpy().reshape(-1).astype(np.float64)
    assert 0 < (p > 0.5).sum() < len(X)
    outputs = model(X).numpy()
    np.testing.assert_array_equal(classes.from_outputs(outputs), p > 0.5)
    np.testing.assert_allclose(
        classes.probabilities(outputs), np.stack([1 - p, p], axis=1), atol=1e-6
    )
    z = nns.InstrumentedModel(model).logits(X).reshape(-1)
    np.testing.assert_array_equal(classes.scores(z), np.stack([-z, z], axis=1) / 2)
    np.testing.assert_allclose(keras.ops.softmax(classes.scores(z))[:, 1], p, atol=1e-6)
    assert classes.neuron(0) == (0, -1)
    assert classes.neuron(1) == (0, 1)
    with pytest.raises(InvalidArgumentError, match="2 classes"):
        classes.neuron(2)


def test_several_sigmoids_are_independent_labels():
    model = model_of(layers.Activation("sigmoid"))
    classes = nns.InstrumentedModel(model).classes
    assert classes.is_multi_label
    assert classes.count == 3
    outputs = model(X).numpy()
    np.testing.assert_allclose(classes.probabilities(outputs), outputs, atol=1e-7)
    np.testing.assert_array_equal(classes.from_outputs(outputs), outputs.argmax(axis=1))


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def falling(v):
    return 1 - ops.sigmoid(v)


def shifted(v):
    return ops.sigmoid(2 * v - 1)


def softmax(z):
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


# One value for two classes: the end of the model, the units before it, and P(class 1) of their
# values in NumPy.
ONE_VALUE = {
    "hard_sigmoid": (layers.Activation("hard_sigmoid"), 1, lambda z: np.clip(z / 6 + 0.5, 0, 1)),
    "hard_sigmoid operation": (ops.hard_sigmoid, 1, lambda z: np.clip(z / 6 + 0.5, 0, 1)),
    "one minus": (lambda s: 1 - ops.sigmoid(s), 1, lambda z: sigmoid(-z)),
    "own function": (layers.Activation(falling), 1, lambda z: sigmoid(-z)),
    "own layer": (layers.Lambda(falling), 1, lambda z: sigmoid(-z)),
    "of a negative": (lambda s: ops.sigmoid(-s), 1, lambda z: sigmoid(-z)),
    "shifted": (layers.Activation(shifted), 1, lambda z: sigmoid(2 * z - 1)),
    "tanh": (lambda s: (ops.tanh(s) + 1) / 2, 1, lambda z: (np.tanh(z) + 1) / 2),
    "squared": (lambda s: ops.square(ops.sigmoid(s)), 1, lambda z: sigmoid(z) ** 2),
    "clipped": (lambda s: ops.clip(ops.sigmoid(s), 1e-7, 1 - 1e-7), 1, sigmoid),
    "a clip": (lambda s: ops.clip(s, 0.0, 1.0), 1, lambda z: np.clip(z, 0, 1)),
    "mean": (
        lambda s: (ops.sigmoid(s) + ops.sigmoid(3 * s - 1)) / 2,
        1,
        lambda z: (sigmoid(z) + sigmoid(3 * z - 1)) / 2,
    ),
    "ensemble": (
        lambda s: layers.Average()([ops.sigmoid(s), ops.sigmoid(3 * s - 1)]),
        1,
        lambda z: (sigmoid(z) + sigmoid(3 * z - 1)) / 2,
    ),
    "one of two": (lambda s: layers.Softmax()(s)[:, 1:], 2, lambda z: softmax(z)[:, 1:]),
    "one of two, a scalar": (lambda s: ops.softmax(s)[:, 0], 2, lambda z: softmax(z)[:, :1]),
}


@pytest.mark.parametrize("name", ONE_VALUE)
def test_one_probability_is_two_classes(name):
    tail, units, probability = ONE_VALUE[name]
    model = functional(tail, units)
    im = nns.InstrumentedModel(model)
    z = keras.Model(model.inputs, model.get_layer("scores").output).predict(X, verbose=0)
    p = probability(z.astype(np.float64))[:, 0]
    assert 0 < (p > 0.5).sum() < len(X)
    assert im.classes.is_binary
    np.testing.assert_allclose(
        im.classes.probabilities(im.predict(X)), np.stack([1 - p, p], axis=1), atol=1e-6
    )
    np.testing.assert_array_equal(im.classes.from_outputs(im.predict(X)), p > 0.5)
    scores = im.classes.scores(im.logits(X))
    np.testing.assert_array_equal(im.classes.from_logits(im.logits(X)), p > 0.5)
    np.testing.assert_allclose(scores[:, 0], -scores[:, 1])
    assert (np.diff(scores[np.lexsort((scores[:, 1], p)), 1]) >= -1e-6).all()
    np.testing.assert_allclose(
        im.outputs_from(im.logits(X)).reshape(-1), im.predict(X).reshape(-1), atol=1e-6
    )
    slicer = nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), progress=False)
    np.testing.assert_array_equal(slicer.slice_each(X).predicted, p > 0.5)
    found = slicer.explain(X[0])
    assert found.predicted == int(p[0] > 0.5)
    np.testing.assert_allclose(found.whole, [1 - p[0], p[0]], atol=1e-6)


LABELS = {
    "hard_sigmoid": (layers.Activation("hard_sigmoid"), lambda z: np.clip(z / 6 + 0.5, 0, 1)),
    "one minus": (lambda s: 1 - ops.sigmoid(s), lambda z: sigmoid(-z)),
    "ensemble": (
        lambda s: layers.Average()([ops.sigmoid(s), ops.sigmoid(3 * s - 1)]),
        lambda z: (sigmoid(z) + sigmoid(3 * z - 1)) / 2,
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_several_probabilities_are_independent_labels(name):
    tail, probability = LABELS[name]
    model = functional(tail)
    im = nns.InstrumentedModel(model)
    z = keras.Model(model.inputs, model.get_layer("scores").output).predict(X, verbose=0)
    p = probability(z.astype(np.float64))
    assert im.classes.is_multi_label
    np.testing.assert_allclose(im.classes.probabilities(im.predict(X)), p, atol=1e-6)
    np.testing.assert_array_equal(im.classes.from_outputs(im.predict(X)), p.argmax(axis=1))
    np.testing.assert_array_equal(im.classes.from_logits(im.logits(X)), p.argmax(axis=1))


@pytest.mark.parametrize("factor", [3.0, 1 / 3, -2.0])
def test_a_softmax_of_multiples_is_one_of_its_scores(factor):
    model = functional(layers.Activation(lambda s: ops.softmax(s * factor)))
    im = nns.InstrumentedModel(model)
    z = keras.Model(model.inputs, model.get_layer("scores").output).predict(X, verbose=0)
    expected = softmax(factor * z.astype(np.float64))
    assert im.classes.final == "softmax"
    np.testing.assert_allclose(im.classes.probabilities(im.predict(X)), expected, atol=1e-5)
    np.testing.assert_allclose(im.logits(X), factor * z, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(im.classes.from_logits(im.logits(X)), expected.argmax(axis=1))


RATINGS = {
    "of five stars": lambda s: 5 * ops.sigmoid(s),
    "between -1 and 1": ops.tanh,
    "linear": lambda s: s,
}


@pytest.mark.parametrize("name", RATINGS)
def test_another_single_value_is_a_number_and_says_what_was_assumed(name):
    im = nns.InstrumentedModel(functional(RATINGS[name], 1))
    assert im.classes.is_number
    with pytest.raises(InvalidArgumentError, match=r"predicts a number.*task='binary'"):
        im.classes.probabilities(im.predict(X))
    slicer = nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), progress=False)
    assert (slicer.slice_each(X).predicted == -1).all()
    assert "task='binary'" in slicer.explain(X[0]).summary()


def test_a_softmax_over_one_unit_is_no_classifier():
    with pytest.warns(UserWarning, match="size 1"):  # of Keras
        im = nns.InstrumentedModel(model_of(layers.Softmax(), units=1))
        with pytest.raises(InvalidArgumentError, match="one unit is always 1"):
            im.classes.probabilities(np.ones((2, 1)))


LOSSES = {
    "object": (lambda: keras.losses.BinaryCrossentropy(from_logits=True), "binary", "multilabel"),
    "focal": (
        lambda: keras.losses.BinaryFocalCrossentropy(from_logits=True),
        "binary",
        "multilabel",
    ),
    "partial": (
        lambda: partial(keras.losses.binary_crossentropy, from_logits=True),
        "binary",
        "multilabel",
    ),
    "probabilities": (lambda: "binary_crossentropy", "binary", "multilabel"),
    "classes": (lambda: "sparse_categorical_crossentropy", "regression", "multiclass"),
    "numbers": (lambda: "mse", "regression", "regression"),
    "Huber": (lambda: keras.losses.Huber(), "regression", "regression"),
    "hinge": (lambda: "hinge", "binary", "multilabel"),
    "none": (lambda: None, "regression", "multiclass"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_says_what_outputs_without_a_final_function_are(name):
    build, *tasks = LOSSES[name]
    for units, task in zip((1, 3), tasks, strict=True):
        model = model_of(units=units)
        model.compile("sgd", build())
        assert nns.InstrumentedModel(model).classes.task == task


def test_one_logit_of_a_compiled_model_is_two_classes(tmp_path):
    model = model_of(units=1)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0)])
    z = model.predict(X, verbose=0)[:, 0].astype(np.float64)
    path = tmp_path / "model.keras"
    model.save(path)
    copies = {"copy": nns.instrument.copy_model(model), "file": nns.instrument.load_model(path)}
    for one in (model, *copies.values()):
        im = nns.InstrumentedModel(one)
        np.testing.assert_array_equal(im.classes.from_outputs(im.predict(X)), z > 0)
        p = im.classes.probabilities(im.predict(X))
        np.testing.assert_allclose(p, np.stack([sigmoid(-z), sigmoid(z)], axis=1), atol=1e-6)
    # A hinge loss is of margins, also after a function from -1 to 1; another loss is noticed.
    margins = keras.Sequential([model, layers.Activation("tanh")])
    for one in (model, margins):
        one.compile("sgd", keras.losses.SquaredHinge())
        im = nns.InstrumentedModel(one)
        np.testing.assert_array_equal(im.classes.from_outputs(im.predict(X)), z > 0)
    im = nns.instrument.instrumented(model)
    assert im.classes.is_binary
    model.compile("sgd", "mse")
    assert nns.instrument.instrumented(model).classes.is_number


def test_the_losses_of_several_outputs():
    x = keras.Input((4,))
    outputs = {"risk": layers.Dense(1, name="a")(x), "price": layers.Dense(1, name="b")(x)}
    model = keras.Model(x, outputs)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", {"risk": loss, "price": "mse"})
    im = nns.InstrumentedModel(model)
    assert im.classes_of("risk").is_binary
    assert im.classes_of("price").is_number


def test_the_task_can_be_given():
    z = model_of(units=1).predict(X, verbose=0)[:, 0]
    im = nns.InstrumentedModel(model_of(units=1), task="binary")
    np.testing.assert_array_equal(im.classes.from_outputs(im.predict(X)), z > 0)
    assert im.copy().classes.is_binary
    three = nns.InstrumentedModel(model_of(), task="regression")
    assert three.classes.is_number
    slicer = nns.Slicer(three, nns.Profile.from_data(three, X, progress=False), progress=False)
    with pytest.raises(nns.errors.CriterionError, match="3 numbers"):
        slicer.slice(X)
    assert nns.InstrumentedModel(model_of(), task="multilabel").classes.is_multi_label
    for wrong in ("binary", "classes"):
        with pytest.raises(InvalidArgumentError, match="task must be"):
            nns.InstrumentedModel(model_of(), task=wrong)


HEADS = {
    "softmax": ("softmax", layers.Flatten(), 3),
    "selected": ("softmax", lambda v: v[:, 0, 0], 3),
    "sigmoid": ("sigmoid", layers.Flatten(), 1),
    "labels": ("sigmoid", layers.Reshape((3,)), 3),
    "own": (falling, layers.Flatten(), 1),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_convolution_of_one_position_is_a_vector(name):
    activation, flatten, units = HEADS[name]
    keras.utils.set_random_seed(0)
    x = keras.Input((4,))
    head = layers.Conv2D(units, 1, activation=activation)
    model = keras.Model(x, flatten(head(layers.Reshape((1, 1, 4))(x))))
    twin = keras.Sequential([keras.Input((4,)), layers.Dense(units, activation=activation)])
    twin.set_weights([w.reshape(s.shape) for w, s in zip(model.get_weights(), twin.weights)])
    slices, found = [], []
    for one in (model, twin):
        im = nns.InstrumentedModel(one)
        assert im.logits(X).shape == (len(X), units)
        np.testing.assert_allclose(im.predict(X), twin.predict(X, verbose=0), atol=1e-6)
        slicer = nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), progress=False)
        slices.append(slicer.slice_each(X))
        found.append(slicer.explain(X[3]))
        assert nns.instrument.instrumented(im).classes == nns.InstrumentedModel(twin).classes
    np.testing.assert_array_equal(slices[0].predicted, slices[1].predicted)
    np.testing.assert_array_equal(slices[0].to_array(), slices[1].to_array())
    np.testing.assert_allclose(found[0].whole, found[1].whole, atol=1e-6)
    np.testing.assert_allclose(found[0].contributions, found[1].contributions, atol=1e-6)


def test_maps_have_a_class_at_each_position():
    x = keras.Input((5, 5, 2))
    model = keras.Model(x, layers.Conv2D(3, 1, activation="softmax")(x))
    images = np.random.default_rng(0).normal(size=(2, 5, 5, 2)).astype(np.float32)
    outputs = model(images).numpy()
    classes = nns.InstrumentedModel(model).classes
    assert classes.count == 3
    np.testing.assert_array_equal(classes.from_outputs(outputs), outputs.argmax(axis=-1))


def test_a_softmax_over_the_first_axis():
    x = keras.Input((3, 5))
    model = keras.Model(x, layers.Softmax(axis=1)(layers.Dense(5)(x)))
    values = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    outputs = model(values).numpy()
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
    outputs = model(X).numpy()
    np.testing.assert_allclose(im.classes.probabilities(im.predict(X)), outputs, atol=1e-6)
    np.testing.assert_array_equal(im.classes.from_outputs(im.predict(X)), outputs.argmax(axis=1))
