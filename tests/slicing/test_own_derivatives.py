"""Gradients that users define are another function's: signs and amounts follow the change."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns

tf = pytest.importorskip("tensorflow")


@tf.custom_gradient
def reversed_gradient(x):
    return tf.identity(x), lambda given: -given


@tf.custom_gradient
def doubled(x):
    return 2 * tf.nn.relu(x), lambda given: -3 * given


@tf.custom_gradient
def scaled(x):
    return 2 * x + 1, lambda given: -given


def straight_through(x):
    return x + ops.stop_gradient(ops.sign(x) - x)


class Reversal(layers.Layer):
    def call(self, x):
        return reversed_gradient(x)


class Reading(layers.Layer):
    """Registered as what moves values."""

    def call(self, x):
        return reversed_gradient(x[:, ::-1])


nns.register_layer(Reading, lambda layer, call: [nns.Step("routing", layer.call)])


def indicator(x):
    return layers.Concatenate()([x, ops.cast(ops.equal(x, 0.0), "float32")])


FUNCTIONS = {
    "reversal": Reversal(),
    "reversal in a Lambda": layers.Lambda(reversed_gradient),
    "a rectifier": layers.Lambda(doubled),
    "an affine function": layers.Lambda(scaled),
    "an activation": layers.Activation(doubled),
    "routing": Reading(),
    "detached": lambda x: x + ops.stop_gradient(ops.flip(x, -1)) * 2,
    "detached in a Lambda": layers.Lambda(lambda x: x + 2 * ops.stop_gradient(x)),
    "straight through": straight_through,
    "straight through in a Lambda": layers.Lambda(straight_through),
    "missing values": indicator,
    "own rectifier": lambda x: x * ops.cast(x > 0, "float32"),
    "own rectifier in a Lambda": layers.Lambda(lambda x: x * ops.cast(x > 0, "float32")),
    "a gate": lambda x: ops.where(x > 0.5, x, -ops.square(x)),
    "several conditions": lambda x: ops.cast((x > 0) & (x < 1) | (x < -1), "float32") * x,
    "rounded": lambda x: x + ops.stop_gradient(ops.round(x) - x),
}


def model_of(name):
    keras.utils.set_random_seed(0)
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(3)(FUNCTIONS[name](x)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_amounts_add_up_to_the_change_of_the_function(name):
    model = model_of(name)
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    x[:, 1] = np.round(x[:, 1])
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    mean = profile.means["x"][None].astype(np.float32)
    slicer = nns.Slicer(im, profile, 0.0, contribution="amount", workers=0, progress=False)
    for sample in x[:6, None]:
        amounts = slicer.slice(sample, outputs=[1]).neurons["x"]
        change = (model(sample) - model(mean))[0, 1]
        np.testing.assert_allclose(amounts.sum(), change, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_counts_at_zero_agree_with_exclusion(name):
    model = model_of(name)
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    counts = [
        nns.Slicer(model, profile, theta, workers=0, progress=False).slice(x[:5], outputs=[1])
        for theta in (0.0, 1e-12)
    ]
    assert counts[0] == counts[1]


def test_a_detached_branch_counts():
    h = keras.Input((2,), name="h")
    y = h + ops.stop_gradient(ops.flip(h, -1)) * 2
    model = keras.Model(h, y)
    profile = nns.Profile.from_data(model, np.array([[-1, -1], [1, 1]], np.float32), progress=False)
    one = np.ones((1, 2), np.float32)
    for contribution, expected in (("amount", [1, 2]), ("count", [1, 1])):
        slicer = nns.Slicer(model, profile, 0.0, contribution=contribution, workers=0)
        np.testing.assert_allclose(slicer.slice(one, outputs=[0]).neurons["h"], expected)


class Squares(layers.Layer):
    def call(self, x):
        return ops.square(x) * ops.flip(x, -1)


def test_a_kind_that_does_not_describe_the_function_is_refused():
    nns.register_layer(Squares, lambda layer, call: [nns.Step("product_sum", layer.call)])
    x = keras.Input((4,))
    model = keras.Model(x, layers.Dense(2)(Squares(name="own")(x)))
    data = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    profile = nns.Profile.from_data(model, data, progress=False)
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'own' .*product_sum.* add up to"):
        nns.Slicer(model, profile, 0.0, contribution="amount", workers=0)


class Magnitudes(layers.Layer):
    def call(self, x):
        return ops.sum(ops.abs(x), axis=-1, keepdims=True)


def by_change(node, theta, signs, output, inputs):
    change = np.abs(inputs[0].value) - np.abs(inputs[0].value - inputs[0].delta)
    return [signs * np.sign(change).astype(np.int8)]


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_counts_need_no_multipliers_of_ones_own_kind(theta):
    """The gradient halfway, which stands for missing ones, is no difference of magnitudes."""
    nns.register_layer(Magnitudes, lambda layer, call: [nns.Step("magnitudes", layer.call)])
    nns.kinds.register_rule("magnitudes", by_change)
    keras.utils.set_random_seed(0)
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(2, use_bias=False)(Magnitudes()(x)))
    model.layers[-1].set_weights([np.ones((1, 2))])
    data = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    profile = nns.Profile.from_data(model, data, progress=False)
    slicer = nns.Slicer(model, profile, theta, workers=0, progress=False)
    found = slicer.slice(data[:1], outputs=[0]).neurons["x"]
    change = np.abs(data[0]) - np.abs(data.mean(axis=0))
    sums = np.abs(data).sum(axis=1)
    np.testing.assert_array_equal(found, np.sign(change) * np.sign(sums[0] - sums.mean()))
    deep = keras.Model(x, layers.Dense(2)(Magnitudes()(layers.Dense(5)(x))))
    profile = nns.Profile.from_data(deep, data, progress=False)
    nns.Slicer(deep, profile, theta, workers=0)
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"register_kind\)"):
        nns.Slicer(deep, profile, 0.0, contribution="amount", workers=0)


class Wrong(layers.Layer):
    def call(self, x):
        return reversed_gradient(tf.reduce_max(x, axis=1))


def test_a_gradient_of_another_function_is_refused():
    pooled = nns.instrument.Pooling(lambda: np.arange(3, dtype=np.int32)[None])
    nns.register_layer(Wrong, lambda layer, call: [nns.Step("maximum", layer.call, pooled)])
    x = keras.Input((3, 4))
    model = keras.Model(x, layers.Dense(2)(Wrong(name="own")(x)))
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match="'own' of kind 'maximum' has a grad"
    ):
        nns.InstrumentedModel(model)
