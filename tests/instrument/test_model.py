"""`InstrumentedModel`: names, captured values, logits and gradients, against plain Keras."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.instrument.upstream import taking_turns


def samples(shape, n=5, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32)


def close(value, expected):
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


def network():
    """A functional model with a join; layers have names."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 2), name="image")
    x = layers.Conv2D(6, 3, padding="same", activation="relu", name="first")(inputs)
    h = layers.BatchNormalization(name="norm")(layers.Conv2D(6, 3, padding="same", name="inner")(x))
    x = layers.ReLU(name="out")(layers.Add(name="join")([h, x]))
    x = layers.MaxPooling2D(name="pool")(x)
    x = layers.Flatten(name="flat")(x)
    x = layers.Dense(4, activation="softmax", name="dense")(x)
    return keras.Model(inputs, x, name="network")


@pytest.fixture(scope="module")
def model():
    return network()


@pytest.fixture(scope="module")
def im(model):
    return nns.InstrumentedModel(model)


# --- captured values -------------------------------------------------------------------


def check_functional(model, im, x):
    """Compare every layer's value with what a Keras model that ends there gives."""
    activations = im.capture(x)
    for layer in model.layers:
        part = keras.Model(model.inputs[0], layer.output)
        close(activations[layer.name], part(x, training=False))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_analysed_in_float32(model, im, policy):
    mixed = keras.models.clone_model(model)
    mixed.set_weights(model.get_weights())
    for layer in mixed.layers[:-1]:
        layer.dtype_policy = policy
    x = samples(im.input_shape)
    expected, found = im.capture(x), nns.InstrumentedModel(mixed).capture(x)
    for name, value in found.items():
        assert value.dtype == np.float32
        close(value, expected[name])
    gradient = nns.InstrumentedModel(mixed).gradients(x, of=1, wrt=["join"])["join"]
    close(gradient, im.gradients(x, of=1, wrt=["join"])["join"])


def test_functional_model(model, im):
    check_functional(model, im, samples(im.input_shape))
    names = [operation.name for operation in im.operations]
    assert names == [
        *("image", "first:pre", "first", "inner", "norm", "join"),
        *("out", "pool", "flat", "dense:pre", "dense"),
    ]


def test_sequential_model():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(3, 3, activation="relu", name="conv"),
            layers.Flatten(name="flat"),
            layers.Dense(2, name="dense"),
        ]
    )
    im = nns.InstrumentedModel(model)
    check_functional(model, im, samples((6, 6, 1)))
    assert [o.name for o in im.operations[1:]] == ["conv:pre", "conv", "flat", "dense"]


def test_sequential_model_without_input():
    model = keras.Sequential([layers.Dense(3, activation="relu", name="a"), layers.Dense(2)])
    im = nns.InstrumentedModel(model, input_shape=(4,))
    x = samples((4,))
    close(im.predict(x), model(x))
    close(im.capture(x)["a"], model.layers[0](x))


def test_models_in_models():
    """A Sequential in a functional model in a functional model, called twice."""
    block = keras.Sequential([layers.Dense(4, activation="relu", name="unit")], name="block")
    middle_in = keras.Input((4,))
    middle = keras.Model(middle_in, layers.Add(name="sum")([block(middle_in), middle_in]), name="m")
    inputs = keras.Input((4,), name="x")
    once = middle(inputs)
    twice = middle(once)
    model = keras.Model(inputs, layers.Dense(2, name="head")(twice))
    im = nns.InstrumentedModel(model)
    x = samples((4,))
    activations = im.capture(x)
    unit = block.layers[0]
    first = unit(x)
    second = unit(first + x)
    close(activations["m/block/unit"], first)
    close(activations["m/sum"], first + x)
    close(activations["m/block/unit#1"], second)
    close(activations["m/sum#1"], second + first + x)
    close(activations["head"], model(x))
    before = activations["m/block/unit#1:pre"]
    close(before, np.asarray(first + x) @ unit.kernel + unit.bias)
    assert list(im.kernels) == ["m/block/unit", "head"]


def test_shared_layer():
    conv = layers.Conv2D(2, 3, padding="same", activation="relu", name="conv")
    inputs = keras.Input((5, 5, 2))
    model = keras.Model(inputs, conv(conv(conv(inputs))))
    im = nns.InstrumentedModel(model)
    x = samples((5, 5, 2))
    activations = im.capture(x)
    close(activations["conv"], conv(x))
    close(activations["conv#1"], conv(conv(x)))
    close(activations["conv#2"], conv(conv(conv(x))))
    assert [o.name for o in im.operations[1:]] == [
        *("conv:pre", "conv", "conv#1:pre", "conv#1", "conv#2:pre", "conv#2")
    ]
    assert {o.layer for o in im.operations[1:]} == {"conv"}
    assert list(im.kernels) == ["conv"]


class Residual(keras.Model):
    """A subclassed model with an operator and a layer that it calls twice."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4, name="dense")
        self.drop = layers.Dropout(0.5, name="drop")
        self.head = layers.Dense(3, activation="sigmoid", name="head")

    def call(self, x, training=False):
        h = self.dense(x)
        h = self.drop(ops.relu(h), training=training)
        return self.head(self.dense(h) + x * 2.0)


@pytest.mark.parametrize("known", [True, False], ids=["built", "not built"])
def test_subclassed_model(known):
    model = Residual()
    x = samples((4,))
    if known:
        model(x)
    im = nns.InstrumentedModel(model, input_shape=None if known else (4,))
    activations = im.capture(x)
    h = model.dense(x)
    close(activations["dense"], h)
    close(activations["dense#1"], model.dense(ops.relu(h)))
    close(activations["head"], model(x))
    kinds = [o.kind for o in im.operations[1:]]
    assert sorted(kinds) == sorted(
        ["weighted_sum"] * 3 + ["rectify", "routing", "scale", "add", "elementwise"]
    )


def test_operators():
    inputs = keras.Input((3,), name="x")
    a = layers.Dense(3, name="a")(inputs)
    model = keras.Model(inputs, (inputs + a * 2.0) * (1.0 - inputs))
    im = nns.InstrumentedModel(model)
    x = samples((3,))
    activations = im.capture(x)
    a = x @ np.asarray(model.get_layer("a").kernel)
    expected = {"multiply": [a * 2, (x + a * 2) * (1 - x)], "add": [x + a * 2], "subtract": [1 - x]}
    found = {key: [] for key in expected}
    for operation in im.operations[2:]:
        name = type(operation.keras_layer).__name__.lower()
        found[name].append(activations[operation.name])
    for name, values in expected.items():
        for value, wanted in zip(found[name], values, strict=True):
            close(value, wanted)


def test_model_with_an_input_in_a_structure():
    inputs = keras.Input((4,), name="x")
    model = keras.Model({"x": inputs}, layers.Dense(2)(inputs))
    x = samples((4,))
    close(nns.InstrumentedModel(model).predict(x), model({"x": x}))


def test_model_with_several_outputs():
    inputs = keras.Input((4,))
    h = layers.Dense(3, name="h")(inputs)
    model = keras.Model(inputs, [layers.Dense(2, name="a")(h), layers.Dense(5, name="b")(h)])
    im = nns.InstrumentedModel(model)
    x = samples((4,))
    assert im.output_operations == ("a", "b")
    close(im.predict(x), model(x)[0])
    close(im.capture(x)["b"], model(x)[1])


def test_image_size_left_open():
    inputs = keras.Input((None, None, 1))
    model = keras.Model(inputs, layers.GlobalAveragePooling2D()(layers.Conv2D(2, 3)(inputs)))
    im = nns.InstrumentedModel(model, input_shape=(7, 6, 1))
    x = samples((7, 6, 1))
    close(im.predict(x), model(x))


# --- capture, predict, logits ----------------------------------------------------------


def test_streaming_gives_the_same_and_cuts_batches(im):
    import tensorflow as tf

    x = samples(im.input_shape, n=23)
    whole = im.capture(x)
    dataset = tf.data.Dataset.from_tensor_slices((x, np.zeros(23))).batch(9)
    for data in (x, dataset, list(x), [x[:5], x[5:]]):
        parts = list(im.capture_batches(data, batch_size=10))
        assert [len(part["image"]) for part in parts] == [10, 10, 3]
        for name in whole:
            close(np.concatenate([part[name] for part in parts]), whole[name])


def test_values_do_not_depend_on_the_batch_size(im):
    x = samples(im.input_shape, n=21)
    whole = im.capture(x)
    for size in (1, 2, 8, 20):
        part = im.capture(x, batch_size=size)
        for name in whole:
            close(part[name], whole[name])


def test_only_what_is_asked_is_captured(im):
    x = samples(im.input_shape)
    part = im.capture(x, of=["pool", "first:pre"])
    assert list(part) == ["pool", "first:pre"]
    assert np.array_equal(part["pool"], im.capture(x)["pool"])
    assert list(im.capture(x, of="join")) == ["join"]


def test_predict_and_logits(model, im):
    x = samples(im.input_shape)
    close(im.predict(x), model(x))
    flat = keras.Model(model.input, model.get_layer("flat").output)(x)
    dense = model.get_layer("dense")
    close(im.logits(x), np.asarray(flat) @ dense.kernel + dense.bias)
    assert im.logit_operation == "dense:pre"


@pytest.mark.parametrize(
    ("tail", "logits"),
    [
        ([layers.Dense(3, name="d")], "d"),
        ([layers.Dense(3, activation="sigmoid", name="d")], "d:pre"),
        ([layers.Dense(3, activation="relu", name="d")], "d"),
        ([layers.Dense(3, name="d"), layers.Softmax()], "d"),
        ([layers.Dense(3, name="d"), layers.Activation("log_softmax")], "d"),
    ],
)
def test_logits_are_before_a_final_softmax_or_sigmoid(tail, logits):
    im = nns.InstrumentedModel(keras.Sequential([keras.Input((4,)), *tail]))
    assert im.logit_operation == logits


def test_weights_are_shared_and_the_model_is_left_as_it_was():
    model = network()
    x = samples((8, 8, 2))
    before = np.asarray(model(x))
    nodes = {layer.name: len(layer._inbound_nodes) for layer in model.layers}
    config, weights = model.get_config(), [np.array(w) for w in model.weights]
    im = nns.InstrumentedModel(model)
    im.capture(x)
    im.gradients(x, of=0)
    assert {layer.name: len(layer._inbound_nodes) for layer in model.layers} == nodes
    assert model.get_config() == config
    assert all(np.array_equal(a, b) for a, b in zip(model.weights, weights))
    assert np.array_equal(model(x), before)
    kernel = model.get_layer("first").kernel
    kernel.assign(kernel * 2)
    close(im.predict(x), model(x))
    assert not np.allclose(im.predict(x), before)


def test_summary(im):
    lines = im.summary().splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert rows["operation"] == ["kind", "layer", "shape", "synapses"]
    assert rows["first:pre"] == ["weighted_sum", "Conv2D", "8×8×6", "108"]
    assert rows["join"] == ["add", "Add", "8×8×6"]
    assert rows["image"] == ["input", "Input", "8×8×2"]
    assert set(rows) >= {operation.name for operation in im.operations}
    assert repr(im) == "InstrumentedModel('network', 11 operations, 816 synapses)"


def test_an_unknown_operation_lists_near_ones(im):
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"no operation 'frist'.*'first'"):
        im.capture(samples(im.input_shape), of=["frist"])
    with pytest.raises(nns.errors.InvalidArgumentError, match="no operation 'zzz'"):
        im["zzz"]
    assert im["first"].kind == "rectify"


# --- gradients -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smooth():
    """A model that is smooth, so that differences approach derivatives."""
    keras.utils.set_random_seed(3)
    stack = [layers.Dense(5, activation="tanh", name="hidden"), layers.Dense(3, name="logits")]
    return nns.InstrumentedModel(keras.Sequential([keras.Input((4,)), *stack]))


def weights_of(im):
    return [np.asarray(weight, np.float64) for weight in im.model.weights]


def logits_of(im, x):
    w1, b1, w2, b2 = weights_of(im)
    return np.tanh(x @ w1 + b1) @ w2 + b2


def differences(function, x, step=1e-5):
    """Central differences of `(n,)` values with respect to `(n, k)` float64 inputs."""
    columns = []
    for k in range(x.shape[1]):
        move = step * np.eye(x.shape[1])[k]
        columns.append((function(x + move) - function(x - move)) / (2 * step))
    return np.stack(columns, axis=1)


def close_gradient(gradient, expected):
    assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_gradient_of_a_logit(smooth):
    x = samples((4,)).astype(np.float64)
    expected = differences(lambda x: logits_of(smooth, x)[:, 1], x)
    gradients = smooth.gradients(x, of=1, batch_size=2)
    assert list(gradients) == [smooth.input_operation]
    close_gradient(gradients[smooth.input_operation], expected)


def test_gradient_of_each_samples_own_logit(smooth):
    x = samples((4,)).astype(np.float64)
    own = np.array([2, 0, 1, 1, 0])
    expected = differences(lambda x: logits_of(smooth, x)[np.arange(5), own], x)
    close_gradient(smooth.gradients(x, of=own, batch_size=3)[smooth.input_operation], expected)


def test_gradient_by_inner_operations(smooth):
    x = samples((4,)).astype(np.float64)
    w1, b1, w2, b2 = weights_of(smooth)
    before = x @ w1 + b1
    gradients = smooth.gradients(x, of=2, wrt=["hidden", "hidden:pre"])
    close_gradient(gradients["hidden"], differences(lambda h: (h @ w2 + b2)[:, 2], np.tanh(before)))
    close_gradient(
        gradients["hidden:pre"], differences(lambda p: (np.tanh(p) @ w2 + b2)[:, 2], before)
    )


def test_gradient_of_a_function(smooth):
    x = samples((4,)).astype(np.float64)
    w1, b1, *_ = weights_of(smooth)

    def target(values):
        return ops.sum(ops.square(values["hidden"]), axis=1) + values["logits"][:, 0]

    def function(x):
        return (np.tanh(x @ w1 + b1) ** 2).sum(axis=1) + logits_of(smooth, x)[:, 0]

    gradients = smooth.gradients(x, of=target, needs=["hidden", "logits"])
    close_gradient(gradients[smooth.input_operation], differences(function, x))


def test_gradient_of_what_does_not_depend_is_zero(smooth):
    gradients = smooth.gradients(
        samples((4,)), of=lambda values: values["hidden"][:, 0], needs=["hidden"], wrt=["logits"]
    )
    assert np.array_equal(gradients["logits"], np.zeros((5, 3)))


@pytest.mark.parametrize("of", [3, -1, [0, 1], 0.5, [0, 1, 2, 0, 9]])
def test_targets_out_of_range_are_refused(smooth, of):
    with pytest.raises(nns.errors.InvalidArgumentError, match="logits of shape"):
        smooth.gradients(samples((4,)), of=of)


# --- bad data and models ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (
            np.zeros((2, 8, 8, 3)),
            nns.errors.InputShapeError,
            r"\(samples, 8, 8, 2\).*\(2, 8, 8, 3\)",
        ),
        (np.zeros((8, 8, 2)), nns.errors.InputShapeError, "Received shape"),
        (np.array([["a"]]), nns.errors.InputShapeError, "real numbers"),
        (np.zeros((2, 8, 8, 2), complex), nns.errors.InputShapeError, "complex"),
        (np.float32(3), nns.errors.InputShapeError, "must be an array"),
        (np.zeros((0, 8, 8, 2)), nns.errors.InvalidArgumentError, "empty"),
        ([], nns.errors.InvalidArgumentError, "empty"),
    ],
)
def test_bad_data_is_refused(im, x, error, message):
    with pytest.raises(error, match=message):
        im.capture(x)
    with pytest.raises(error, match=message):
        im.gradients(x, of=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_sample_that_is_not_finite_is_named(im, bad):
    x = samples(im.input_shape, n=30)
    x[17, 0, 0, 0] = bad
    with pytest.raises(nns.errors.NonFiniteActivationError, match="Sample 17 "):
        im.capture(x, batch_size=8)


def test_arrays_are_checked_before_the_first_batch(im):
    x = samples(im.input_shape, n=30)
    x[29] = np.nan
    with pytest.raises(nns.errors.NonFiniteActivationError, match="Sample 29 "):
        next(im.capture_batches(x, batch_size=8))


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_bad_batch_sizes_are_refused(im, size):
    with pytest.raises(nns.errors.InvalidArgumentError, match="batch_size"):
        im.capture(samples(im.input_shape), batch_size=size)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_name_the_operation(bad):
    model = network()
    bias = np.zeros(4)
    bias[2] = bad
    model.get_layer("dense").bias.assign(bias)
    im = nns.InstrumentedModel(model)
    with pytest.raises(
        nns.errors.NonFiniteActivationError, match=r"Operation 'dense:pre'.*sample 0"
    ):
        im.capture(samples(im.input_shape))


def test_the_sample_whose_activation_overflows_is_named(im):
    x = samples(im.input_shape, n=12)
    x[9] = 3e38
    with pytest.raises(
        nns.errors.NonFiniteActivationError, match=r"Operation 'first:pre'.*sample 9"
    ):
        im.capture(x, batch_size=5)


@pytest.mark.parametrize(
    "build",
    [
        lambda: keras.Sequential([layers.Dense(2)]),
        lambda: Residual(),
        lambda: keras.Sequential([keras.Input((None, None, 3)), layers.Conv2D(2, 3)]),
    ],
    ids=["sequential", "subclassed", "open size"],
)
def test_models_of_unknown_input_shape_say_what_to_do(build):
    with pytest.raises(nns.errors.InputShapeError, match="input_shape="):
        nns.InstrumentedModel(build())


@pytest.mark.parametrize("thing", ["model.keras", None, layers.Dense(2)])
def test_other_things_than_models_are_refused(thing):
    with pytest.raises(nns.errors.InvalidArgumentError, match=type(thing).__name__):
        nns.InstrumentedModel(thing)


def test_what_is_prepared_is_kept_until_the_weights_change():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    im = nns.InstrumentedModel(model)
    made = []

    def prepare():
        made.append(model.get_weights()[0].copy())
        return len(made)

    assert [im.prepared("one", prepare) for _ in range(3)] == [1, 1, 1]
    assert im.prepared("another", prepare) == 2
    model.set_weights([w + 1 for w in model.get_weights()])
    assert im.prepared("one", prepare) == 3 and im.prepared("one", prepare) == 3
    np.testing.assert_array_equal(made[2], made[0] + 1)


def test_threads_take_turns_after_a_collision():
    """As in TensorFlow, whose temporary variables collide where two threads run one function."""
    busy, collisions = threading.Lock(), []

    def double(x):
        if not busy.acquire(blocking=False):
            collisions.append(x)
            raise KeyError("in use")
        time.sleep(0.01)
        busy.release()
        return 2 * x

    shared = taking_turns(double, KeyError)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(shared, range(20))) == list(range(0, 40, 2))
    assert collisions
    with pytest.raises(ZeroDivisionError):
        taking_turns(lambda: 1 // 0, ZeroDivisionError, tries=2)()
