"""Ablations where a mask's units lie on other axes, or only some kernels have groups."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import Ablation, Mean, Samples
from nnslicer_tf.instrument.ablated_models import with_constants
from nnslicer_tf.instrument.ablated_network import named_variables

TOKENS, HEADS, SIZE = 4, 3, 2


def test_heads_on_the_first_axis():
    """An attention of matrix products, whose values are (heads, tokens, size)."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((TOKENS, 5))

    def by_head(x):
        return ops.transpose(ops.reshape(x, (-1, TOKENS, HEADS, SIZE)), (0, 2, 1, 3))

    parts = [layers.Dense(HEADS * SIZE, use_bias=False) for _ in range(3)]
    q, k, v = (by_head(part(inputs)) for part in parts)
    chances = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))))
    context = ops.transpose(ops.matmul(chances, v), (0, 2, 1, 3))
    last = layers.Dense(2, use_bias=False)
    outputs = last(ops.reshape(context, (-1, TOKENS * HEADS * SIZE)))
    model = keras.Model(inputs, outputs)
    x = np.random.default_rng(0).normal(size=(20, TOKENS, 5)).astype(np.float32)

    q, k, v = (
        (x @ part.kernel.numpy()).reshape(-1, TOKENS, HEADS, SIZE).swapaxes(1, 2) for part in parts
    )
    chances = np.exp(q @ k.swapaxes(2, 3))
    results = chances / chances.sum(-1, keepdims=True) @ v  # (samples, heads, tokens, size)
    mask = np.array([True, False, True])
    masked = np.where(mask[:, None, None], results, results.mean(axis=0))
    expected = masked.swapaxes(1, 2).reshape(len(x), -1) @ last.kernel.numpy()

    ablation = Ablation(model, nns.Profile.from_data(model, x, progress=False), "head")
    (name,) = ablation.shapes
    assert ablation.shapes == {name: (HEADS,)}
    np.testing.assert_allclose(ablation.outputs({name: mask}, x), expected, rtol=1e-4, atol=1e-5)


def test_synapses_of_one_kernel_in_groups():
    """The model has a mask of groups for one kernel, and one of synapses for the other."""
    keras.utils.set_random_seed(2)
    first, second = layers.Dense(3, name="first"), layers.Dense(2, name="second")
    model = keras.Sequential([keras.Input((4,)), first, second])
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    groups = {"first": [np.arange(6).tolist(), np.arange(6, 12).tolist()]}  # inputs 0, 1 and 2, 3
    ablation = Ablation(model, nns.Profile.from_data(model, x, progress=False), groups=groups)
    assert ablation.shapes == {"first": (2,), "second": (3, 2)}
    mask = {"first": np.array([1, 0]), "second": np.array([[1, 0], [0, 1], [1, 1]])}
    (w, b), (v, c) = first.get_weights(), second.get_weights()
    read = np.where([True, True, False, False], x, x.mean(axis=0))
    hidden, mean = read @ w + b, (x @ w + b).mean(axis=0)
    expected = hidden @ (v * mask["second"]) + mean @ (v * (1 - mask["second"])) + c
    np.testing.assert_allclose(ablation.outputs(mask, x), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ablation.model(mask)(x), expected, rtol=1e-4, atol=1e-5)


def test_masks_of_no_kernel_are_refused():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="only")])
    im = nns.InstrumentedModel(model)
    means = {o.name: np.zeros(o.shape, np.float32) for o in im.operations}
    with pytest.raises(nns.errors.InvalidArgumentError, match="Unknown kernel 'other'"):
        with_constants(im, {"other": np.ones((4, 3))}, means)
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"shape \(3, 4\), expected"):
        with_constants(im, {"only": np.ones((3, 4))}, means)


SEQUENCES = {
    "simple": lambda x: layers.SimpleRNN(3)(x),
    "gru backwards with a state": lambda x: layers.GRU(2, go_backwards=True)(
        x, initial_state=layers.Dense(2)(x[:, 0])
    ),
}


@pytest.mark.parametrize(
    ("name", "donors"), [("simple", True), ("gru backwards with a state", False)]
)
def test_a_mask_for_each_sample_inside_recurrent_layers(name, donors):
    """Samples with masks of their own give what they give one after the other."""
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(3)
    inputs = keras.Input((3, 2))
    model = keras.Model(inputs, layers.Dense(2)(SEQUENCES[name](inputs)))
    x = rng.normal(size=(12, 3, 2)).astype(np.float32)
    reference = nns.Profile.from_data(model, x, progress=False)
    if donors:
        reference = Samples(x[:2])
    ablation = Ablation(model, reference, target=1)
    masks, x = (rng.random((3, ablation.units)) < 0.6).astype(np.float32), x[4:7]
    alone = [ablation.outputs(mask, one[None]) for mask, one in zip(masks, x, strict=True)]
    together = ablation.outputs(masks, x)
    assert np.ptp(together, axis=0).min() > 1e-3  # the samples differ
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-4, atol=1e-5)
    if donors:
        effects = [ablation.effects(mask, one[None])[1] for mask, one in zip(masks, x, strict=True)]
        np.testing.assert_allclose(ablation.effects(masks, x)[1], effects, rtol=1e-3, atol=1e-5)


def test_variables_of_one_path_are_numbered():
    variables = [SimpleNamespace(path=path) for path in "abaa"]
    named = named_variables(SimpleNamespace(functional=SimpleNamespace(variables=variables)))
    assert list(named) == ["a", "b", "a#1", "a#2"]
    assert list(named.values()) == variables


class Inside(layers.Layer):
    """A layer of layers, after which no constant can be added."""

    def build(self, shape):
        self.dense = layers.Dense(3)
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)


class Between(keras.Model):
    """Its functions get other names in a copy, as Keras numbers them."""

    def __init__(self):
        super().__init__()
        self.inside, self.last = Inside(name="inside"), layers.Dense(2, name="last")

    def call(self, x):
        return self.last(ops.exp(self.inside(x)))


def test_functions_between_layers_have_other_names_in_a_copy():
    model, rng = Between(), np.random.default_rng(0)
    x = rng.normal(size=(9, 4)).astype(np.float32)
    model(x)
    ablation = Ablation(model, nns.Profile.from_data(model, x, progress=False))
    mask = (rng.random(ablation.units) < 0.5).astype(np.float32)
    found = ablation.model(mask)(x)
    np.testing.assert_allclose(found, ablation.outputs(mask, x), rtol=1e-4, atol=1e-5)


def test_a_nested_model_has_one_constant_for_all_its_calls():
    """Rectifiers that are dead for some samples hide that the second call needs another one."""
    inputs = keras.Input((3,))
    encoder = keras.Model(inputs, layers.Dense(3, "relu", name="e")(inputs), name="in")
    outer = keras.Input((3,))
    model = keras.Model(outer, layers.Dense(2, name="o")(encoder(encoder(outer))))
    rng = np.random.default_rng(8)
    model.set_weights([rng.normal(size=v.shape) for v in model.weights])
    x = np.random.default_rng(8).normal(size=(50, 3)).astype(np.float32)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    found = nns.Slicer(im, profile, theta=0.2, progress=False).slice(x[5:6])
    keep = {name: values != 0 for name, values in found.synapses.items()}
    with pytest.raises(UnsupportedLayerError, match="called with different means"):
        with_constants(im, keep, profile.means)
    with pytest.raises(UnsupportedLayerError, match="called with different means"):
        nns.pruning.prune(im, keep, 0.3, means=profile)

    w, b, v, c = (np.float64(value) for value in model.get_weights())
    value = np.float64(x)
    read = [profile.means[name] for name in (im.input_operation, "in/e", "in/e#1")]
    kernels = ((w, b, keep["in/e"]), (w, b, keep["in/e"]), (v, c, keep["o"]))
    for k, ((kernel, bias, mask), mean) in enumerate(zip(kernels, read, strict=True)):
        value = (value - mean) @ (kernel * mask) + mean @ kernel + bias
        value = value if k == 2 else np.maximum(value, 0)
    masked = found.apply(model, profile)
    np.testing.assert_allclose(masked.predict(x, verbose=0), value, atol=1e-5)


def test_a_nested_model_that_is_called_on_the_same_is_copied():
    inputs = keras.Input((3,))
    encoder = keras.Model(inputs, layers.Dense(3, "relu")(inputs))
    outer = keras.Input((3,))
    both = layers.Concatenate()([encoder(outer), encoder(outer)])
    im = nns.InstrumentedModel(keras.Model(outer, layers.Dense(2)(both)))
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    keep = {name: np.arange(k.size).reshape(k.shape) % 2 > 0 for name, k in im.kernels.items()}
    expected = Ablation(im, Mean(profile)).outputs(keep, x)
    copy = with_constants(im, keep, profile.means)
    np.testing.assert_allclose(copy.predict(x, verbose=0), expected, atol=1e-5)


@pytest.mark.parametrize("size", [None, 6])
def test_a_size_that_a_layer_leaves_open_is_known_to_the_masked_model(size):
    """Keras reports None for the axis; by hand, with the weights."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 4), name="x")
    hidden = layers.EinsumDense(
        "abc,cd->abd", output_shape=(size, 5), bias_axes="d", activation="relu", name="e"
    )(inputs)
    outputs = layers.Dense(3, name="o")(layers.GlobalAveragePooling1D(name="g")(hidden))
    model = keras.Model(inputs, outputs)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(rng.normal(size=variable.shape))
    x = rng.normal(size=(40, 6, 4)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    keep = (rng.random((4, 5)) < 0.5).astype(np.float32)
    one = nns.Slice({}, {"e": keep, "o": np.ones((5, 3))}, {})
    kernel, bias, last, last_bias = model.get_weights()
    mean = x.mean(axis=0)
    sums = x @ (kernel * keep) + mean @ (kernel * (1 - keep)) + bias
    expected = np.maximum(sums, 0).mean(axis=1) @ last + last_bias
    found = one.apply(model, profile).predict(x, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
