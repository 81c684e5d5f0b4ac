"""Activations and functions are recognised by what they do, whatever they are called."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns

X = np.random.default_rng(0).normal(scale=2, size=(40, 6)).astype(np.float32)


def relu(v):
    return ops.maximum(v, 0.0)


def misleading(v):
    return ops.softmax(v)


misleading.__name__ = "relu"


@keras.saving.register_keras_serializable("recognition")
def rows_of_one(v):
    return ops.softmax(v)


def model_with(activation, units=5, last=True, seed=0):
    keras.utils.set_random_seed(seed)
    tail = [layers.Dense(3, name="end")] if last else []
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(units, activation=activation, name="own"), *tail]
    )


def tensorflow(name):
    tf = pytest.importorskip("tensorflow")
    return getattr(tf.nn, name)


# One function, written in ways that share no name, and its Keras twin.
TWINS = {
    "tf relu": (lambda: tensorflow("relu"), "relu"),
    "maximum": (lambda: relu, "relu"),
    "lambda": (lambda: lambda v: v * ops.cast(v > 0, v.dtype), "relu"),
    "layer": (lambda: layers.ReLU(), "relu"),
    "tf relu6": (lambda: tensorflow("relu6"), "relu6"),
    "hand-made relu6": (lambda: lambda v: ops.minimum(ops.relu(v), 6.0), "relu6"),
    "tf leaky": (lambda: tensorflow("leaky_relu"), "leaky_relu"),
    "tf tanh": (lambda: tensorflow("tanh"), "tanh"),
    "swish": (lambda: lambda v: v * ops.sigmoid(v), "silu"),
    "same": (lambda: lambda v: v, "linear"),
    "tf softmax": (lambda: tensorflow("softmax"), "softmax"),
    "called relu": (lambda: misleading, "softmax"),
}


@pytest.mark.parametrize("theta", [0.0, 0.3])
@pytest.mark.parametrize("name", TWINS)
def test_slices_equal_those_of_the_keras_twin(name, theta):
    build, twin = TWINS[name]
    slices = []
    for activation in (build(), twin):
        im = nns.InstrumentedModel(model_with(activation))
        profile = nns.Profile.from_data(im, X)
        slicer = nns.Slicer(im, profile, theta=theta, progress=False)
        slices.append(slicer.slice(X, outputs=[1]))
    for kernel in slices[0].synapses:
        np.testing.assert_array_equal(slices[0].synapses[kernel], slices[1].synapses[kernel])


@pytest.mark.parametrize("name", ["tf relu", "maximum", "hand-made relu6", "tf leaky", "same"])
def test_exact_lines_of_recognised_functions(name):
    im = nns.InstrumentedModel(model_with(TWINS[name][0]()))
    line = nns.exactline.exact_line(im, -4 * X[0], 4 * X[1])
    middles = (line.points[1:] + line.points[:-1]) / 2
    ends = line.outputs
    np.testing.assert_allclose(im.logits(middles), (ends[1:] + ends[:-1]) / 2, atol=1e-4)


@pytest.mark.parametrize("activation", ["softmax", misleading, lambda v: ops.softmax(v)])
def test_a_softmax_inside_passes_contributions_to_all_inputs(activation):
    x = keras.Input((1,))
    mixed = layers.Dense(2, activation=activation, name="own")(x)
    model = keras.Model(x, layers.Dense(1, use_bias=False, name="read")(mixed))
    model.get_layer("own").set_weights([np.array([[0.0, 3.0]]), np.array([0.5, 0.0])])
    model.get_layer("read").set_weights([np.array([[1.0], [0.0]])])
    im = nns.InstrumentedModel(model)
    data = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    slicer = nns.Slicer(im, nns.Profile.from_data(im, data), theta=0.0, progress=False)
    # Output 0 of the softmax falls when input 1 rises; input 0 is constant.
    contributions = slicer.slice(data[-1:], outputs=[0]).neurons["own:pre"]
    assert contributions[0] == 0
    assert contributions[1] != 0


MIXING = {
    "centred": lambda v: v - ops.mean(v, axis=-1, keepdims=True),
    "of the batch": lambda v: v - ops.mean(v, axis=0, keepdims=True),
    "cumulative": lambda v: ops.cumsum(v, axis=-1),
    "softmax of some": lambda v: ops.concatenate([ops.softmax(v[:, :2]), ops.relu(v[:, 2:])], -1),
    "gated by the first": lambda v: v * ops.sigmoid(v[:, :1]),
    "gated by neighbours": lambda v: v * ops.sigmoid(ops.roll(v, 1, axis=-1)),
    "product of a pair": lambda v: ops.concatenate([v[:, :1] * v[:, 1:2], v[:, 1:]], -1),
    "switched off": lambda v: ops.where(v[:, :1] > 12, 0.0, ops.relu(v)),
    "log_softmax inside": "log_softmax",
    "sparsemax inside": "sparsemax",
}


@pytest.mark.parametrize("name", MIXING)
def test_functions_that_mix_are_refused_by_layer(name):
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'own'.*depend on several inputs"):
        nns.InstrumentedModel(model_with(MIXING[name]))


@pytest.mark.parametrize("units", [70, 1000])
def test_wide_functions_that_mix_two_units_are_refused(units):
    def mixed(v):
        return ops.concatenate([v[:, :-1], v[:, -1:] * ops.sigmoid(v[:, :1])], -1)

    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'own'.*depend on several inputs"):
        nns.InstrumentedModel(model_with(mixed, units))
    nns.InstrumentedModel(model_with(lambda v: v * v, units))


def test_a_function_with_chance_is_refused():
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'own'.*same input"):
        nns.InstrumentedModel(model_with(lambda v: v + keras.random.normal(ops.shape(v))))


def test_a_registered_elementwise_step_is_tried_out():
    @keras.saving.register_keras_serializable("recognition")
    class Centred(layers.Layer):
        def call(self, x):
            return x - ops.mean(x, axis=-1, keepdims=True)

    step = nns.instrument.Step
    elementwise = nns.instrument.Elementwise
    nns.register_layer(
        Centred, lambda layer, call: [step("elementwise", layer.call, elementwise("centred"))]
    )
    model = keras.Sequential([keras.Input((6,)), Centred(name="own"), layers.Dense(2)])
    with pytest.raises(nns.errors.UnsupportedLayerError, match="'own'"):
        nns.InstrumentedModel(model)


@pytest.mark.parametrize("ending", ["log_softmax", "sparsemax"])
def test_at_the_end_they_are_the_final_activation(ending):
    model = model_with(ending, units=3, last=False)
    im = nns.InstrumentedModel(model)
    outputs = model.predict(X, verbose=0)
    expected = np.exp(outputs) if ending == "log_softmax" else outputs
    np.testing.assert_allclose(im.classes.probabilities(im.predict(X)), expected, atol=1e-5)
    assert im.logit_operation == "own:pre"


def test_compact_keeps_outputs_of_a_network_with_an_unnamed_softmax():
    model = model_with(rows_of_one)
    kernel, bias = model.get_layer("own").get_weights()
    kernel[:, 2] = bias[2] = 0  # a zero that the softmax turns into a probability
    model.get_layer("own").set_weights([kernel, bias])
    small = nns.pruning.compact(model)
    np.testing.assert_allclose(small.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-6)


LAMBDAS = {
    "relu": (lambda v: ops.maximum(v, 0.0), "rectify"),
    "scaled": (lambda v: v / 255.0 - 0.5, "scale"),
    "standardised": (lambda v: (v - np.arange(6, dtype="float32")) * 2, "scale"),
    "moved": (lambda v: ops.reshape(v, (-1, 3, 2)), "routing"),
    "some": (lambda v: v[:, 1:4], "routing"),
    "squared": (lambda v: v * v, "elementwise"),
    "unit": (lambda v: v / ops.norm(v, axis=-1, keepdims=True), "scale"),
}


@pytest.mark.parametrize("name", LAMBDAS)
def test_lambdas_are_what_they_do(name):
    function, kind = LAMBDAS[name]
    model = keras.Sequential(
        [keras.Input((6,)), layers.Lambda(function, name="own"), layers.Flatten(), layers.Dense(2)]
    )
    im = nns.InstrumentedModel(model)
    assert im["own"].kind == kind
    np.testing.assert_allclose(im.predict(X), model.predict(X, verbose=0), rtol=1e-5, atol=1e-5)


OPERATIONS = {
    "absolute power": lambda x: ops.power(ops.absolute(x), 1.5),
    "sine": ops.sin,
    "rolled": lambda x: ops.roll(x, 2, axis=1),
    "reciprocal": lambda x: 1 / (1 + ops.exp(x)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_one_tensor_need_no_rule_of_their_own(name):
    x = keras.Input((6,))
    model = keras.Model(x, layers.Dense(2)(OPERATIONS[name](x)))
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(X), model.predict(X, verbose=0), rtol=1e-5, atol=1e-5)


def test_an_operation_that_mixes_samples_is_refused():
    x = keras.Input((6,))
    model = keras.Model(x, layers.Dense(2)(ops.roll(x, 1, axis=0)))
    with pytest.raises(nns.errors.UnsupportedLayerError, match="roll"):
        nns.InstrumentedModel(model)


@pytest.mark.parametrize("cell", [layers.SimpleRNN, layers.LSTM, layers.GRU])
def test_recurrent_layers_with_functions_of_ones_own(cell):
    keras.utils.set_random_seed(0)
    rnn = cell(4, activation=relu)
    model = keras.Sequential([keras.Input((3, 6)), rnn, layers.Dense(2)])
    x = X[:6].reshape(2, 3, 6)
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(x), model.predict(x, verbose=0), atol=1e-5)
    with pytest.raises(nns.errors.UnsupportedLayerError, match="depend on several inputs"):
        rnn = cell(4, activation=MIXING["centred"])
        nns.InstrumentedModel(keras.Sequential([keras.Input((3, 6)), rnn, layers.Dense(2)]))
