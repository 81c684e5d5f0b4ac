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


def test_a_small_constant_is_not_lost():
    """Added before a logarithm, it is what keeps the values finite."""
    inputs = keras.Input((6,))
    value = ops.log(layers.Dense(5, activation="softmax")(inputs) + 1e-7)
    model = keras.Model(inputs, layers.Dense(3)(value))
    im = nns.InstrumentedModel(model)
    (added,) = (o for o in im.operations if o.name.startswith("add"))
    assert added.kind == "scale"
    factor, offset = added.params.read()
    np.testing.assert_allclose(factor, np.ones(5), rtol=1e-6)
    np.testing.assert_allclose(offset, np.full(5, 1e-7), rtol=1e-6)
    np.testing.assert_allclose(im.predict(40 * X), model(40 * X), rtol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda v: ops.maximum(v, -5.0),
        lambda v: ops.minimum(v, 6.0),
        lambda v: ops.minimum(ops.maximum(v, -300.0), 1e4),
        lambda v: ops.flip(ops.maximum(v, -40.0), axis=-1),
    ],
    ids=["-5", "6", "-300 and 10,000", "-40, turned round"],
)
def test_a_bound_that_is_far_away_is_not_lost(function):
    """Values that a small sample does not reach are clipped, also on exact lines."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(3)(function(layers.Dense(5)(inputs))))
    start, end = 2e4 * X[:2].astype(np.float64)
    line = nns.exactline.exact_line(model, start, end)
    assert len(line) > 1
    ratios = np.linspace(0, 1, 301)
    expected = model.predict(line.at(ratios).astype(np.float32), verbose=0)
    np.testing.assert_allclose(line.evaluate(ratios), expected, rtol=1e-4, atol=1e-2)


def test_a_softmax_of_bounded_values_has_the_bounds():
    inputs = keras.Input((6,))
    bounded = layers.Lambda(lambda v: ops.softmax(ops.clip(v, -12.0, 12.0)), name="bounded")
    model = keras.Model(inputs, layers.Dense(3)(bounded(layers.Dense(5)(inputs))))
    im = nns.InstrumentedModel(model)
    kinds = [operation.kind for operation in im.operations]
    assert kinds.index("elementwise") < kinds.index("softmax")
    np.testing.assert_allclose(im.predict(40 * X), model(40 * X), rtol=1e-4)


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
    points = line.at(line.ratios)
    middles = (points[1:] + points[:-1]) / 2
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
    outputs = model(X).numpy()
    expected = np.exp(outputs) if ending == "log_softmax" else outputs
    np.testing.assert_allclose(im.classes.probabilities(im.predict(X)), expected, atol=1e-5)
    assert im.logit_operation == "own:pre"


def test_compact_keeps_outputs_of_a_network_with_an_unnamed_softmax():
    model = model_with(rows_of_one)
    kernel, bias = model.get_layer("own").get_weights()
    kernel[:, 2] = bias[2] = 0  # a zero that the softmax turns into a probability
    model.get_layer("own").set_weights([kernel, bias])
    small = nns.pruning.compact(model)
    np.testing.assert_allclose(small(X).numpy(), model(X).numpy(), atol=1e-6)


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
    np.testing.assert_allclose(im.predict(X), model(X).numpy(), rtol=1e-5, atol=1e-5)


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
    np.testing.assert_allclose(im.predict(X), model(X).numpy(), rtol=1e-5, atol=1e-5)


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
    np.testing.assert_allclose(im.predict(x), model(x).numpy(), atol=1e-5)
    with pytest.raises(nns.errors.UnsupportedLayerError, match="depend on several inputs"):
        rnn = cell(4, activation=MIXING["centred"])
        nns.InstrumentedModel(keras.Sequential([keras.Input((3, 6)), rnn, layers.Dense(2)]))


def bent(v):
    return 2 * ops.maximum(v, 0.0)


# Continuous piecewise-linear functions that Keras does not have, and their kinks.
PIECEWISE = {
    "doubled": (bent, [0]),
    "shifted": (lambda v: ops.relu(v - 1), [1]),
    "shifted by a third": (lambda v: ops.relu(v - 1 / 3) + 0.5, [1 / 3]),
    "clipped at 4": (lambda v: ops.minimum(ops.relu(v), 4.0) - 1, [0, 4]),
    "absolute": (ops.abs, [0]),
    "folded": (lambda v: ops.abs(v) + 1, [0]),
    "tent": (lambda v: ops.relu(1 - ops.abs(v)), [-1, 0, 1]),
    "two slopes": (lambda v: ops.where(v > 0.75, 3 * v - 1.5, v), [0.75]),
    "hard swish of parts": (lambda v: ops.relu(v + 3) / 6 + ops.relu(v) - v / 2, [-3, 0]),
}


@pytest.mark.parametrize("name", PIECEWISE)
def test_exact_lines_of_own_piecewise_linear_functions(name):
    function, kinks = PIECEWISE[name]
    model = model_with(function)
    im = nns.InstrumentedModel(model)
    first, last = -4 * X[0], 4 * X[1]
    line = nns.exactline.exact_line(im, first, last)
    ratios = np.linspace(0, 1, 501)
    points = (first + ratios[:, None] * (last - first)).astype(np.float32)
    expected = model.predict(points, verbose=0)
    found = [np.interp(ratios, line.ratios, values) for values in line.outputs.T]
    np.testing.assert_allclose(np.stack(found, axis=1), expected, rtol=1e-4, atol=1e-4)
    # A region ends where a unit passes a kink.
    kernel, bias = (w.numpy().astype(np.float64) for w in model.layers[0].weights)
    a, b = first @ kernel + bias, last @ kernel + bias
    crossings = [(kink - a) / (b - a) for kink in kinks]
    expected = sorted(r for ratio in crossings for r in ratio if 0 < r < 1)
    np.testing.assert_allclose(line.ratios[1:-1], expected, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda v: ops.tanh(v) * v,
        lambda v: v * v,
        lambda v: ops.where(v > 0, v + 1, v),  # jumps
        lambda v: ops.relu(v - 0.01) + ops.relu(v),  # kinks that are very close
        lambda v: ops.relu(v - np.arange(5, dtype="float32")),  # differs between units
    ],
)
def test_exact_lines_refuse_other_functions_and_say_why(function):
    im = nns.InstrumentedModel(model_with(function))
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'own'.*kinks could not be loc"):
        nns.exactline.exact_line(im, X[0], X[1])


def test_a_function_that_moves_values_is_routing():
    model = model_with(lambda v: ops.flip(v, axis=-1))
    im = nns.InstrumentedModel(model)
    assert im["own"].kind == "routing"
    np.testing.assert_allclose(im.predict(X), model.predict(X, verbose=0), atol=1e-5)


class Applied(layers.Layer):
    """A layer whose function is known by its registered step alone."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def call(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [lambda v: ops.split(v, 2, axis=-1)[0], lambda v: ops.sum(v, axis=-1)],
    ids=["split", "sum"],
)
def test_functions_that_change_the_shape_are_no_activations(function):
    nns.register_layer(
        Applied,
        lambda layer, call: [
            nns.instrument.Step(
                "elementwise", layer.call, nns.instrument.Elementwise("of mine"), shape=(6,)
            )
        ],
    )
    x = keras.Input((6,))
    model = keras.Model(x, Applied(function, name="own")(x))
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'own' .* maps samples of shape"):
        nns.InstrumentedModel(model)


FAR_KINKS = {
    "clip at 5,000": (lambda v: ops.clip(v, -5000.0, 5000.0), (-5000, 5000)),
    "kink at 1,000": (lambda v: ops.where(v > 1000, 900 + 0.1 * v, ops.relu(v)), (0, 1000)),
    "bump at 13.3": (lambda v: ops.relu(v) + 20 * ops.maximum(0.0, 0.1 - ops.abs(v - 13.3)), None),
    "relu": (lambda v: ops.relu(v), (0,)),
    "clip at 20,000": (lambda v: ops.clip(v, -2e4, 2e4), (-20000, 20000)),
}


@pytest.mark.parametrize("name", FAR_KINKS)
def test_kinks_that_are_far_away_or_close_together(name):
    """A function is known by its values of all magnitudes: kinks are found, or none is named."""
    function, kinks = FAR_KINKS[name]
    x = keras.Input((1,))
    im = nns.InstrumentedModel(keras.Model(x, layers.Dense(1)(layers.Activation(function)(x))))
    (params,) = [o.params for o in im.operations if o.kind in ("elementwise", "rectify")]
    assert (params.knots is None) if kinks is None else params.knots == pytest.approx(kinks)
