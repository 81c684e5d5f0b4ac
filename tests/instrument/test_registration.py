"""Users' own layers: `register_layer` and `register_rule`."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.kinds import Neurons

tf = pytest.importorskip("tensorflow")


def samples(shape, n=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32)


def model_of(layer, shape=(4, 4, 3)):
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape, name="image")
    x = layers.Conv2D(4, 3, padding="same", name="conv")(inputs)
    x = layer(x)
    return keras.Model(inputs, layers.Dense(3, name="logits")(layers.Flatten(name="flat")(x)))


def slice_of(model, x, theta=0.25, granularity="activation"):
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, samples(im.input_shape, 20, 9), progress=False)
    slicer = nns.Slicer(im, profile, theta, granularity, workers=0, progress=False)
    return im, profile, slicer.slice(x, outputs=[1])


# --- a layer that nobody registered ----------------------------------------------------


class Gate(layers.Layer):
    """A function of several inputs, of TensorFlow."""

    def call(self, x):
        return tf.sort(x, axis=-1)


def test_an_unknown_layer_is_refused_with_the_call_that_registers_it():
    with pytest.raises(nns.errors.UnsupportedLayerError) as error:
        nns.InstrumentedModel(model_of(Gate(name="gate")))
    message = str(error.value)
    assert "Layer 'gate' (Gate) has no rule" in message
    assert "a function of TensorFlow" in message and "test_registration.py:" in message
    assert message.index("keras.ops") < message.index("register_layer(Gate, operations_fn)")


def test_an_unknown_layer_is_named_by_its_path():
    inner = keras.Sequential([Gate(name="gate")], name="inner")
    with pytest.raises(nns.errors.UnsupportedLayerError, match="'inner/gate'"):
        nns.InstrumentedModel(model_of(inner))


@pytest.mark.parametrize("wrong", [Gate(), 3, None])
def test_only_classes_are_registered(wrong):
    with pytest.raises(nns.errors.InvalidArgumentError, match="needs a layer class"):
        nns.register_layer(wrong, lambda layer, call: [])


# --- one step of a known kind ----------------------------------------------------------


class Swish(layers.Layer):
    def call(self, x):
        return x * ops.sigmoid(x)


def test_an_elementwise_layer_of_ones_own():
    nns.register_layer(Swish, lambda layer, call: [nns.Step("elementwise", layer.call)])
    x = samples((4, 4, 3))
    im, _, own = slice_of(model_of(Swish(name="act")), x)
    _, _, known = slice_of(model_of(layers.Activation("silu", name="act")), x)
    assert im["act"].kind == "elementwise"
    assert own == known
    before, after = (im.capture(x)[name] for name in ("conv", "act"))
    np.testing.assert_allclose(after, before / (1 + np.exp(-before)), rtol=1e-4, atol=1e-6)


class Swap(layers.Layer):
    """Exchanges rows and columns."""

    def call(self, x):
        return ops.swapaxes(x, 1, 2)


def test_a_routing_layer_of_ones_own_is_probed():
    nns.register_layer(Swap, lambda layer, call: [nns.Step("routing", layer.call)])
    x = samples((4, 4, 3))
    _, _, own = slice_of(model_of(Swap(name="move")), x)
    _, _, known = slice_of(model_of(layers.Permute((2, 1, 3), name="move")), x)
    assert own == known


class Residual(layers.Layer):
    """Two steps: x ↦ x + relu(x)."""

    def call(self, x):
        return x + ops.relu(x)


def test_a_layer_of_two_steps():
    def residual(layer, call):
        return [
            nns.Step("rectify", ops.relu, suffix=":relu"),
            nns.Step("add", lambda x, y: x + y, sources=[0, ":relu"]),
        ]

    nns.register_layer(Residual, residual)
    x = samples((4, 4, 3))
    im, _, own = slice_of(model_of(Residual(name="res")), x)
    assert im["res"].inputs == ("conv", "res:relu")
    inputs = keras.Input((4, 4, 3))
    keras.utils.set_random_seed(1)
    h = layers.Conv2D(4, 3, padding="same", name="conv")(inputs)
    h = layers.Add(name="res")([h, layers.ReLU(name="res:relu")(h)])
    known = slice_of(
        keras.Model(inputs, layers.Dense(3, name="logits")(layers.Flatten(name="flat")(h))), x
    )[2]
    for name in ("conv", "res", "res:relu"):
        assert np.array_equal(own.neurons[name], known.neurons[name])
    for name in ("conv", "logits"):
        assert np.array_equal(own.synapses[name], known.synapses[name])


# --- wrong registrations ---------------------------------------------------------------


class Double(layers.Layer):
    def call(self, x):
        return 2 * x


@pytest.mark.parametrize("compute", [lambda x: x, lambda x: 2 * x + 1, lambda x: -2 * x])
def test_steps_that_compute_something_else_are_refused(compute):
    nns.register_layer(Double, lambda layer, call: [nns.Step("elementwise", compute)])
    with pytest.raises(
        nns.errors.UnsupportedLayerError,
        match="does not compute what its registered operations compute",
    ):
        nns.InstrumentedModel(model_of(Double()))


def test_a_layer_that_is_registered_as_routing_but_computes_is_refused():
    nns.register_layer(Double, lambda layer, call: [nns.Step("routing", layer.call)])
    with pytest.raises(nns.errors.UnsupportedLayerError, match="'double' is registered as routing"):
        slice_of(model_of(Double(name="double")), samples((4, 4, 3)))


def test_the_last_registration_holds():
    nns.register_layer(Double, lambda layer, call: [nns.Step("elementwise", layer.call)])
    assert nns.InstrumentedModel(model_of(Double(name="double")))["double"].kind == "elementwise"


# --- a kind of one's own ---------------------------------------------------------------


class ChannelMaximum(layers.Layer):
    """The largest value at each position over the channels, `(batch, height, width, 1)`."""

    def call(self, x):
        return ops.max(x, axis=-1, keepdims=True)


def channel_maximum_rule(node, theta, signs, output, inputs):
    """Every channel that is equal to the output."""
    (x,) = inputs
    return [signs * np.sign(x.delta).astype(np.int8) * (x.value == output.value)]


def test_a_kind_without_a_rule_names_the_call():
    nns.register_layer(
        ChannelMaximum, lambda layer, call: [nns.Step("maximum of nothing", layer.call)]
    )
    with pytest.raises(nns.errors.UnsupportedLayerError) as error:
        slice_of(model_of(ChannelMaximum(name="largest")), samples((4, 4, 3)))
    message = str(error.value)
    assert "Operation 'largest' (ChannelMaximum)" in message
    assert "nnslicer_tf.kinds.register_rule('maximum of nothing', rule)" in message


@pytest.mark.parametrize("theta", [0.0, 0.05])
def test_a_kind_of_ones_own_with_its_rule(theta):
    nns.register_layer(
        ChannelMaximum, lambda layer, call: [nns.Step("channel_maximum", layer.call)]
    )
    nns.kinds.register_rule("channel_maximum", channel_maximum_rule)
    x = samples((4, 4, 3), n=1)
    model = model_of(ChannelMaximum(name="largest"))
    im, profile, result = slice_of(model, x, theta)
    activations = im.capture(x)
    expected = np.zeros((4, 4, 4), int)
    value, mean = activations["conv"][0], profile.means["conv"]
    largest, mean_largest = activations["largest"][0], profile.means["largest"]
    for row, column in np.ndindex(4, 4):
        contribution = result.neurons["largest"][row, column, 0]
        change = largest[row, column, 0] - mean_largest[row, column, 0]
        for channel in range(4):
            if value[row, column, channel] == value[row, column].max():
                dx = value[row, column, channel] - mean[row, column, channel]
                expected[row, column, channel] = np.sign(contribution * change * dx)
    assert np.count_nonzero(expected) > 0
    assert np.array_equal(result.neurons["conv"], expected)
    assert np.count_nonzero(result.synapses["conv"]) > 0


def test_a_rule_for_each_granularity():
    def every_channel(node, theta, signs, output, inputs):
        assert isinstance(output, Neurons)
        return [np.repeat(signs, 4, axis=-1)]

    nns.register_layer(ChannelMaximum, lambda layer, call: [nns.Step("by granularity", layer.call)])
    nns.kinds.register_rule("by granularity", nns.kinds.Rule(channel_maximum_rule, every_channel))
    x = samples((4, 4, 3), n=1)
    model = model_of(ChannelMaximum(name="largest"))
    _, _, fine = slice_of(model, x)
    assert (np.count_nonzero(fine.neurons["conv"], axis=-1) <= 1).all()
    _, _, coarse = slice_of(model, x, granularity="channel")
    assert len(set(coarse.neurons["conv"].tolist())) == 1


def test_rules_of_all_executors_for_one_kind():
    """With a rule at θ = 0 and one for multipliers, the executors of the library use them."""
    calls = []

    def at_zero(operation, g, signs, values):
        calls.append("at zero")
        equal = values[operation.inputs[0]] == values[operation.name]
        return [signs[0] * g * ops.cast(equal, "float32")]

    def multipliers(operation, inputs, reference, given):
        """The slope from the reference to the sample, shared out equally among the channels."""
        calls.append("multipliers")
        (x,), (x0,) = inputs, reference
        change = ops.max(x, axis=-1, keepdims=True) - ops.max(x0, axis=-1, keepdims=True)
        return [given * change / (4 * (x - x0))]

    nns.register_layer(ChannelMaximum, lambda layer, call: [nns.Step("own maximum", layer.call)])
    kinds = nns.kinds
    x, model = samples((4, 4, 3), n=1), model_of(ChannelMaximum(name="largest"))
    kinds.register_rule("own maximum", channel_maximum_rule)
    im, profile, slow = slice_of(model, x, 0.0)
    kinds.AT_ZERO["own maximum"] = kinds.AtZero(at_zero)
    _, _, fast = slice_of(model, x, 0.0)
    assert calls.count("at zero") > 0 and np.count_nonzero(slow.neurons["conv"]) > 0
    for name, values in slow.neurons.items():
        assert np.array_equal(fast.neurons[name], values), name

    kinds.MULTIPLIERS["own maximum"] = multipliers
    slicer = nns.Slicer(im, profile, contribution="amount", workers=0, progress=False)
    amounts = slicer.slice(x, outputs=[1]).neurons
    assert calls.count("multipliers") > 0
    shared = np.broadcast_to(amounts["largest"] / 4, amounts["conv"].shape)
    np.testing.assert_allclose(amounts["conv"], shared, atol=1e-5)

    # Another rule must not leave the one at θ = 0, with which it would disagree.
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"Pass at_zero=AtZero"):
        kinds.register_rule("own maximum", lambda *args: channel_maximum_rule(*args))
    kinds.register_rule("own maximum", channel_maximum_rule)  # the same one
    kinds.register_rule("own maximum", lambda *a: channel_maximum_rule(*a), kinds.AtZero(at_zero))


@pytest.mark.parametrize("rule", [None, "maximum", 3])
def test_only_rules_are_registered(rule):
    with pytest.raises(nns.errors.InvalidArgumentError, match="needs a function or Rule"):
        nns.kinds.register_rule("anything", rule)
