"""Own layers that convolve with a variable, or with what they compute from one."""

from collections.abc import Callable
from functools import partial

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.instrument import Ablation

assert_close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def standardised(kernel):
    axes = tuple(range(len(kernel.shape) - 1))
    mean = ops.mean(kernel, axes, keepdims=True)
    return (kernel - mean) / (ops.std(kernel, axes, keepdims=True) + 1e-5)


class Own(layers.Layer):
    """A layer with one kernel, and a function of its input and the kernel."""

    def __init__(self, shape: tuple[int, ...], function: Callable, **options) -> None:
        super().__init__(**options)
        self.shape, self.function = shape, function

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=self.shape, initializer="glorot_uniform", name="kernel")
        self.built = True

    def call(self, x):
        return self.function(x, self.kernel)

    def get_config(self):
        return {**super().get_config(), "shape": self.shape, "function": self.function}


IMAGE, SEQUENCE = (6, 6, 4), (8, 4)
# Input shape, kernel shape, function, and whether the kernel's entries are synapses
CASES = {
    "standardised": (IMAGE, (3, 3, 4, 5), lambda x, k: ops.conv(x, standardised(k)), False),
    "with strides": (IMAGE, (3, 3, 4, 5), lambda x, k: ops.conv(x, -k, 2, "same"), False),
    "dilated": (IMAGE, (2, 2, 4, 5), lambda x, k: ops.conv(x, k, dilation_rate=2), True),
    "of a sequence": (SEQUENCE, (3, 4, 5), lambda x, k: ops.conv(x, standardised(k)), False),
    "depthwise": (IMAGE, (3, 3, 4, 2), lambda x, k: ops.depthwise_conv(x, k, padding="same"), True),
    "depthwise, squared": (IMAGE, (3, 3, 4, 1), lambda x, k: ops.depthwise_conv(x, k * k), False),
    "transposed": (IMAGE, (3, 3, 5, 4), lambda x, k: ops.conv_transpose(x, k, 2, "same"), True),
    "transposed, squared": (IMAGE, (3, 3, 5, 4), lambda x, k: ops.conv_transpose(x, k * k), False),
    "separable": (
        IMAGE,
        (1, 1, 4, 3),
        lambda x, k: ops.separable_conv(x, ops.ones((3, 3, 4, 1)), k, padding="same"),
        False,
    ),
    "moved before": (
        IMAGE,
        (1, 1, 4, 3),
        lambda x, k: ops.separable_conv(x + ops.sum(k), ops.ones((3, 3, 4, 1)), k),
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_convolutions_follow_their_weights(name):
    shape, of_kernel, function, are_synapses = CASES[name]
    keras.utils.set_random_seed(0)
    own = Own(of_kernel, function, name="own")
    last = layers.Dense(3, name="classes")
    model = keras.Sequential([keras.Input(shape), own, layers.ReLU(), layers.Flatten(), last])
    x = np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
    im = nns.InstrumentedModel(model)
    assert len(im.kernels) == 1 + are_synapses
    mask = np.random.default_rng(1).random(Ablation(im, "zero").units) < 0.7
    for _ in range(2):
        assert_close(im.predict(x), model.predict(x, verbose=0))
        # By plain Keras: the masked entries of the kernels are 0.
        before = model.get_weights()
        masks = Ablation(im, "zero").masks(mask)
        kernels = [k.variable() for k in im.kernels.values()]
        for variable, part in zip(kernels, masks.values(), strict=True):
            variable.assign(variable * part.reshape(variable.shape))
        expected = model.predict(x, verbose=0)
        model.set_weights(before)
        assert_close(Ablation(im, "zero").outputs(mask, x), expected)
        for variable in model.weights:  # as training does
            variable.assign(1.5 * variable + 0.1)
    profile = nns.Profile.from_data(im, x, progress=False)
    inverse = Ablation(im, profile)  # everything inactive: the outputs for the means
    empty = inverse.outputs(np.zeros(inverse.units), x)
    assert_close(empty, np.broadcast_to(empty[:1], empty.shape), atol=2e-4)


def named_out_of_order() -> keras.Model:
    """A model of two inputs of one shape that are a list, by names that sort otherwise."""
    first, second = keras.Input((5,), name="b"), keras.Input((5,), name="a")
    parts = [layers.Dense(4, activation="relu")(one) for one in (first, second)]
    joined = layers.Concatenate()([parts[0], 2 * parts[1]])
    return keras.Model([first, second], layers.Dense(3)(joined), name="inner")


def nested() -> keras.Model:
    """The same inside another model, which calls it with a dict."""
    first, second = keras.Input((5,), name="p"), keras.Input((5,), name="q")
    called = named_out_of_order()({"b": layers.Dense(5)(first), "a": second})
    return keras.Model([first, second], called)


@pytest.mark.parametrize("build", [named_out_of_order, nested])
@pytest.mark.parametrize("level", ["synapse", "channel"])
def test_dicts_are_read_by_name(build, level, tmp_path):
    keras.utils.set_random_seed(0)
    model = build()
    names = ("b", "a") if build is named_out_of_order else ("p", "q")
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(20, 5)).astype(np.float32) for name in names}
    im = nns.InstrumentedModel(model)
    assert_close(im.predict(x), model.predict(x, verbose=0))
    ablation = Ablation(im, nns.Profile.from_data(im, x, progress=False), level)
    mask = rng.random(ablation.units) < 0.5
    expected = ablation.outputs(mask, x)
    masked = ablation.model(mask)
    as_list = masked.predict([x[name] for name in names], verbose=0)
    assert_close(as_list, expected)
    assert_close(masked.predict(x, verbose=0), expected)
    masked.save(tmp_path / "masked.keras")
    loaded = keras.models.load_model(tmp_path / "masked.keras")
    assert_close(loaded.predict(x, verbose=0), expected)
