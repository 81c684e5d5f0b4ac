"""Masks: they hold in training, in files, and over each other."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import pruning
from nnslicer_tf.pruning.masks import WeightMask
from support.models import MODELS, data, set_dyadic_weights


def outputs(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False))


def convolutional(**options):
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, name="conv", **options)(inputs)
    x = layers.ReLU()(layers.BatchNormalization(name="norm")(x))
    x = layers.DepthwiseConv2D(2, name="depthwise")(x)
    x = layers.SeparableConv2D(3, 2, name="separable", activation="relu")(x)
    x = layers.Dense(3, name="logits")(layers.Flatten()(x))
    return set_dyadic_weights(keras.Model(inputs, x), np.random.default_rng(0))


def random_masks(model, rng, share=0.5):
    kernels = nns.InstrumentedModel(model).kernels
    return {name: rng.random(kernel.shape) > share for name, kernel in kernels.items()}


def zeros_where_masked(model, masks):
    kernels = nns.InstrumentedModel(model).kernels
    return all(not kernels[name].kernel()[~mask].any() for name, mask in masks.items())


@pytest.mark.parametrize("name", MODELS)
def test_masking_zeroes_the_named_weights_alone(name):
    rng = np.random.default_rng(3)
    model = set_dyadic_weights(MODELS[name](), rng)
    kernels = nns.InstrumentedModel(model).kernels
    first = next(iter(kernels))
    mask = rng.random(kernels[first].shape) > 0.3
    mask.reshape(-1, mask.shape[-1])[0] = True  # so that no neuron is pruned as a whole
    expected = nns.instrument.copy_model(model)
    variable = nns.InstrumentedModel(expected).kernels[first].variable()
    variable.assign(kernels[first].kernel() * mask)
    masked = pruning.apply_masks(model, {first: mask})
    x = data(rng, model, 4)
    np.testing.assert_array_equal(outputs(masked, x), outputs(expected, x))
    np.testing.assert_array_equal(pruning.masks(masked)[first], mask)
    assert list(pruning.masks(masked)) == [first]


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD(0.1, momentum=0.9), "adam"])
def test_masks_hold_in_training(optimizer):
    model = convolutional()
    masks = random_masks(model, np.random.default_rng(1))
    masks["conv"][..., 2] = False  # a neuron without synapses
    pruned = pruning.apply_masks(model, masks)
    before = pruned.get_layer("conv").get_weights()[0]
    pruned.compile(optimizer, "mse")
    rng = np.random.default_rng(2)
    x, y = data(rng, model, 64), rng.normal(size=(64, 3))
    pruned.fit(x, y, epochs=3, batch_size=16, verbose=0)
    assert zeros_where_masked(pruned, masks)
    after = pruned.get_layer("conv").get_weights()[0]
    assert (after != before)[masks["conv"]].all()
    im = nns.InstrumentedModel(pruned)
    assert not im.capture(x, of=["norm"])["norm"][..., 2].any()


def test_a_neuron_without_synapses_is_zero_behind_its_normalisation():
    model = convolutional()
    x = data(np.random.default_rng(4), model, 3)
    mask = np.ones((3, 3, 2, 4), bool)
    mask[..., 1] = False
    pruned = pruning.apply_masks(model, {"conv": mask})
    values = nns.InstrumentedModel(pruned).capture(x, of=["conv", "norm"])
    original = nns.InstrumentedModel(model).capture(x, of=["norm"])["norm"]
    assert not values["conv"][..., 1].any()
    assert not values["norm"][..., 1].any()
    others = [0, 2, 3]
    np.testing.assert_array_equal(values["norm"][..., others], original[..., others])


def test_masks_add_up():
    model = convolutional()
    rng = np.random.default_rng(5)
    first, second = random_masks(model, rng), random_masks(model, rng)
    twice = pruning.masks(pruning.apply_masks(pruning.apply_masks(model, first), second))
    for name in first:
        np.testing.assert_array_equal(twice[name], first[name] & second[name])


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_a_masked_model_saves_and_loads(tmp_path, ending):
    model = convolutional()
    masks = random_masks(model, np.random.default_rng(6))
    pruned = pruning.apply_masks(model, masks)
    path = tmp_path / f"pruned.{ending}"
    pruned.save(path)
    again = keras.models.load_model(path, compile=False)
    x = data(np.random.default_rng(7), model, 8)
    np.testing.assert_array_equal(outputs(again, x), outputs(pruned, x))
    again.compile("sgd", "mse")
    again.fit(x, np.ones((8, 3)), verbose=0)
    assert zeros_where_masked(again, masks)
    for name, mask in pruning.masks(again).items():
        np.testing.assert_array_equal(mask, masks[name])


def test_without_masks_a_file_needs_nothing_of_this_package(tmp_path):
    pruned = pruning.apply_masks(
        convolutional(), random_masks(convolutional(), np.random.default_rng(8))
    )
    plain = pruning.without_masks(pruned)
    assert pruning.masks(plain) == {}
    x = data(np.random.default_rng(9), pruned, 4)
    np.save(tmp_path / "x.npy", x)
    plain.save(tmp_path / "plain.keras")
    code = (
        "import sys, keras, numpy as np\n"
        f"model = keras.models.load_model({str(tmp_path / 'plain.keras')!r})\n"
        f"x = np.load({str(tmp_path / 'x.npy')!r})\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, model(x))\n"
        "assert not [name for name in sys.modules if name.startswith('nnslicer_tf')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), outputs(pruned, x), rtol=1e-6)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(5, activation="relu", name="first")
        self.last = layers.Dense(2, name="last")

    def call(self, x):
        return self.last(self.first(x))


def test_a_subclassed_model_becomes_functional():
    model = Subclassed()
    x = np.random.default_rng(10).normal(size=(4, 3)).astype(np.float32)
    model(x)
    mask = np.arange(15).reshape(3, 5) % 3 > 0
    pruned = pruning.apply_masks(model, {"first": mask})
    weights = np.where(mask, model.first.get_weights()[0], 0)
    hidden = np.maximum(x @ weights, 0)
    np.testing.assert_allclose(
        outputs(pruned, x), hidden @ model.last.get_weights()[0], rtol=1e-5, atol=1e-6
    )


def test_nested_and_shared_layers_are_masked_by_path():
    model = set_dyadic_weights(MODELS["nested"](), np.random.default_rng(11))
    name = next(n for n in nns.InstrumentedModel(model).kernels if n.startswith("inner/"))
    mask = np.arange(36).reshape(3, 3, 2, 2) % 5 > 0
    pruned = pruning.apply_masks(model, {name: mask})
    np.testing.assert_array_equal(pruning.masks(pruned)[name], mask)


class Unconstrained(keras.layers.Layer):
    """A weighted sum of its own, without a constraint on its kernel."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 2))
        self.bias = None

    def call(self, x):
        return keras.ops.matmul(x, self.kernel)


def steps_of_a_sum(layer, call):
    synapses = nns.instrument.Synapses(
        call.path,
        tuple(layer.kernel.shape),
        1,
        "inputs, outputs",
        lambda: layer.kernel,
        lambda: None,
        keras.ops.matmul,
        lambda: np.zeros((1, 1), np.int32),
    )
    compute = lambda x: keras.ops.matmul(x, layer.kernel)  # noqa: E731
    return [nns.Step("weighted_sum", compute, synapses)]


def test_masked_kernels_keep_to_their_other_constraints(tmp_path):
    """Case: EEGNet's kernels have a MaxNorm."""
    bounded = convolutional(kernel_constraint=keras.constraints.MaxNorm(0.1, axis=[0, 1, 2]))
    mask = np.random.default_rng(0).random((3, 3, 2, 4)) < 0.5
    pruning.apply_masks(bounded, {"conv": mask}).save(tmp_path / "masked.keras")
    masked = keras.models.load_model(tmp_path / "masked.keras")
    x = np.random.default_rng(1).normal(size=(32, *masked.input_shape[1:])).astype(np.float32)
    pruning.fine_tune(masked, x, np.arange(32) % 3, 3, learning_rate=0.5, progress=False)
    kernel = keras.ops.convert_to_numpy(masked.get_layer("conv").kernel)
    assert not kernel[~mask].any()
    norms = np.sqrt((kernel**2).sum(axis=(0, 1, 2)))
    assert norms.max() <= 0.1 + 1e-6
    assert norms.max() > 0.05
    free = pruning.without_masks(masked).get_layer("conv").kernel_constraint
    assert type(free) is keras.constraints.MaxNorm


def test_a_layer_without_a_constraint_is_masked_through_its_variable():
    nns.register_layer(Unconstrained, steps_of_a_sum)
    model = keras.Sequential([keras.Input((3,)), Unconstrained(name="odd")])
    keep = np.array([[1, 0], [1, 1], [0, 1]], bool)
    pruned = pruning.apply_masks(model, {"odd": keep})
    pruned.compile("adam", "mse")
    pruned.fit(np.ones((8, 3), np.float32), np.ones((8, 2)), verbose=0)
    kernel = keras.ops.convert_to_numpy(pruned.get_layer("odd").kernel)
    assert not kernel[~keep].any() and kernel[keep].all()
    np.testing.assert_array_equal(pruning.masks(pruned)["odd"], keep)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"nosuch": np.ones(3, bool)}, "Unknown kernel 'nosuch'"),
        ({"conv": np.ones((3, 3), bool)}, r"has shape \(3, 3\), expected the kernel's"),
    ],
)
def test_bad_masks_are_refused(masks, message):
    with pytest.raises(nns.errors.InvalidArgumentError, match=message):
        pruning.apply_masks(convolutional(), masks)


def test_a_mask_is_a_keras_constraint():
    mask = np.arange(30).reshape(5, 6) % 7 > 2
    constraint = WeightMask(mask)
    again = keras.constraints.deserialize(keras.constraints.serialize(constraint))
    np.testing.assert_array_equal(again.mask, mask)
    w = np.full((5, 6), np.inf, np.float32)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(again(w)), np.where(mask, np.inf, 0))
    assert repr(again) == f"WeightMask({mask.sum()} of 30 weights kept)"
