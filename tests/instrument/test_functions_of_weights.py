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
    "clipped": (SEQUENCE, (4,), lambda x, k: ops.clip(x, -ops.abs(k), ops.exp(k)), False),
    "clipped by a variable": (SEQUENCE, (4,), lambda x, k: ops.clip(x, -9, k), False),
    "layer norm": (SEQUENCE, (4,), lambda x, k: ops.layer_normalization(x, k, k, -1), False),
    "norm over two axes": (
        SEQUENCE,
        SEQUENCE,
        lambda x, k: ops.layer_normalization(x, 1 + k, axis=(1, 2)),
        False,
    ),
    "norm scaled by inputs": (
        SEQUENCE,
        (4,),
        lambda x, k: ops.layer_normalization(x, ops.tanh(x * k), x),
        False,
    ),
    "root mean square": (SEQUENCE, (4,), lambda x, k: ops.rms_normalization(x, 1 + k), False),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_follow_their_weights(name):
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


@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: ops.maximum(x, k),
        lambda x, k: ops.where(x > k, x - k, 0.0),
        lambda x, k: ops.sign(x) * ops.power(ops.abs(x), 1 + k),
        lambda x, k: ops.clip(x, -2 - k, 2 + k),
    ],
    ids=["maximum", "threshold", "power", "clip"],
)
def test_what_a_function_is_does_not_depend_on_its_weights_at_wrapping(function):
    """With weights of 0 the first is a ReLU and the third the identity, but not after training."""
    keras.utils.set_random_seed(0)
    own = Own((), function, name="own")
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, name="first"), own])
    model.add(layers.Dense(3))
    own.kernel.assign(0.0)
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    before = nns.InstrumentedModel(model)
    own.kernel.assign(0.8)
    amounts = []
    for im in (before, nns.InstrumentedModel(model)):
        profile = nns.Profile.from_data(im, x, progress=False)
        slicer = nns.Slicer(im, profile, contribution="amount", progress=False)
        amounts.append(slicer.slice(x[:1]).synapses["first"])
        with pytest.raises(nns.errors.UnsupportedLayerError, match="not piecewise linear"):
            nns.exactline.exact_line(im, x[0], x[1])  # its knots would be those of wrapping
    assert_close(*amounts)


NORMS = {
    "layer": (
        layers.LayerNormalization(name="norm"),
        lambda x, k: ops.layer_normalization(x, k, epsilon=1e-3),
    ),
    "root mean square": (
        layers.RMSNormalization(epsilon=1e-3, name="norm"),
        lambda x, k: ops.rms_normalization(x, k, epsilon=1e-3),
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_has_the_amounts_of_its_layer(name):
    amounts = []
    for norm in (NORMS[name][0], Own((4,), NORMS[name][1], name="norm")):
        keras.utils.set_random_seed(0)
        last = [layers.Flatten(), layers.Dense(3)]
        model = keras.Sequential([keras.Input(SEQUENCE), layers.Dense(4), norm, *last])
        norm.weights[0].assign([0.5, 1.0, 1.5, -2.0])
        x = np.random.default_rng(0).normal(size=(6, *SEQUENCE)).astype(np.float32)
        profile = nns.Profile.from_data(model, x, progress=False)
        slicer = nns.Slicer(model, profile, contribution="amount", progress=False)
        amounts.append(slicer.slice(x[:1]).synapses[next(iter(slicer.im.kernels))])
    assert_close(amounts[1], amounts[0])


def test_an_option_that_follows_weights_is_refused():
    function = lambda x, k: ops.celu(x, ops.exp(k[0]))  # noqa: E731
    model = keras.Sequential([keras.Input((4,)), Own((4,), function, name="own"), layers.Dense(2)])
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'own'.*as an option"):
        nns.InstrumentedModel(model)


def test_a_function_that_captures_a_tensor_is_refused():
    function = lambda x, k: ops.fori_loop(0, 3, lambda i, v: v * k + x, x)  # noqa: E731
    model = keras.Sequential([keras.Input((4,)), Own((4,), function, name="own"), layers.Dense(2)])
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"fori_loop.*no rule"):
        nns.InstrumentedModel(model)


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


def test_nested_inputs_are_read_as_the_model_reads_them():
    first, second, third = (keras.Input((3,), name=name) for name in ("z", "a", "m"))
    joined = layers.Concatenate()([first, 2 * second, 3 * third])
    with pytest.warns(UserWarning, match="all keys in the dict"):
        model = keras.Model({"x": [first, third], "y": second}, layers.Dense(2)(joined))
    rng = np.random.default_rng(0)
    x = {"x": [rng.normal(size=(9, 3)), rng.normal(size=(9, 3))], "y": rng.normal(size=(9, 3))}
    expected = model.predict(keras.tree.map_structure(lambda v: v.astype("float32"), x), verbose=0)
    im = nns.InstrumentedModel(model)
    assert_close(im.predict(x), expected)
    by_name = {"z": x["x"][0], "m": x["x"][1], "a": x["y"]}
    assert_close(im.predict(by_name), expected)


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
