"""Deviations that are rounding alone: their bounds against float64, and integers everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.slicing import _zero_walk
from nnslicer_tf.slicing._rounding import DEVIATIONS, UNIT, rounding_bounds
from support.transformers import decoder


def _layers(kind):
    """Return a model that ends in layers of a kind."""
    keras.utils.set_random_seed(3)
    if kind == "attention":
        return decoder()
    x = inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(6, 3, padding="same", name="first")(x)
    y = layers.DepthwiseConv2D(3, padding="same")(x)
    if kind == "normalised":
        x = layers.LayerNormalization()(layers.BatchNormalization()(x))
        x = layers.GroupNormalization(2)(layers.Rescaling(3.0, -7.0)(x))
    elif kind == "pooled":
        x = layers.AveragePooling2D(2)(layers.MaxPooling2D(2, 1)(layers.ReLU()(x)))
        x = layers.ZeroPadding2D()(layers.UpSampling2D()(x))
    elif kind == "merged":
        x = layers.Multiply()([layers.Add()([x, y]), layers.Subtract()([y, x]), y])
        x = layers.Minimum()([layers.Maximum()([x, y]), ops.tanh(x), ops.exp(y)])
    x = layers.Dense(7, activation="gelu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(3)(x))


@pytest.mark.parametrize("kind", ["normalised", "pooled", "merged", "attention"])
def test_bounds_hold_for_neurons_that_are_constant(kind):
    """The values of a constant sample in float32 against float64, and the widths of the bounds."""
    model = _layers(kind)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if weight.path.endswith(("bias", "beta", "mean")):
            weight.assign(rng.normal(size=weight.shape))
    im = nns.InstrumentedModel(model)
    x = rng.normal(size=(1, *im.input_shape)).astype(np.float32)
    if kind == "attention":
        x = rng.integers(1, 5, x.shape).astype(np.float32)
    found = im.capture(x)
    bounds = rounding_bounds(im, {name: values[0] for name, values in found.items()})
    names = [o.name for o in im.operations if o.kind != "mask"]
    graph = im.graph
    exact = graph.run(ops.convert_to_tensor(x.astype(np.float64)), names)
    for name in names:
        error = np.abs(found[name] - np.asarray(exact[name], np.float64))[0]
        assert (error <= bounds[name]).all(), name
        # Wide enough for other orders of summation, and far below what data change.
        spread = np.sqrt(np.mean(found[name].astype(np.float64) ** 2))
        assert np.median(bounds[name]) <= 5e-5 * spread, name
    assert not bounds[im.input_operation].any()


def test_the_bound_of_a_sum_is_that_of_its_terms():
    """Two layers by hand: large terms of opposite sign leave a small value, and a large error."""
    first, second = np.array([[300.0, -2], [-300.0, 4]]), np.array([[1.0], [-5.0]])
    inputs = keras.Input((2,))
    h = layers.Dense(2, name="h")(inputs)
    model = keras.Model(inputs, layers.Dense(1, name="out")(h))
    model.set_weights([first, np.array([0.5, 0]), second, np.array([3.0])])
    mean = np.array([2.0, 2.0])
    values = {"h": np.array([0.5, 4.0]), "out": np.array([-16.5])}
    im = nns.InstrumentedModel(model)
    bounds = rounding_bounds(im, {im.input_operation: mean, **values})
    of_h = np.array([1200.5, 12.0])
    np.testing.assert_allclose(bounds["h"], DEVIATIONS * UNIT * of_h, rtol=1e-6)
    of_out = np.sqrt((of_h**2) @ second**2 + (0.5 + 20 + 3) ** 2)
    np.testing.assert_allclose(bounds["out"], DEVIATIONS * UNIT * of_out, rtol=1e-6)


@pytest.mark.parametrize("theta", [0.0, 0.3])
@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_constant_neurons_and_ties_are_in_no_slice_by_their_last_bits(
    theta, granularity, monkeypatch
):
    """Other last bits of constant channels, and of ties in a maximum, change no integer."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6, 6, 4))
    x = layers.Conv2D(8, 3, padding="same", name="first")(inputs)
    x = layers.MaxPooling2D(name="pool")(x)
    x = layers.Dense(5, name="hidden", activation="relu")(layers.Flatten()(x))
    model = keras.Model(inputs, layers.Dense(3, name="logits")(x))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 6, 6, 4)).astype(np.float32)
    x[:, :, :3] = 0.37  # the left half is the same in all samples, and equal at all positions
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    options = {"granularity": granularity, "workers": 0, "progress": False}
    expected = nns.Slicer(im, profile, theta, **options).slice_each(x[:4], outputs=[0, 1])
    if granularity == "activation":
        first = np.stack([one.neurons["first"] for one in expected])
        assert not first[:, :, :2].any() and first[:, :, 3:].any()
    forward, compute = im.forward, im.compute
    names = ("first", "pool", "hidden:pre", "hidden")
    noise = {name: 1 + UNIT * rng.integers(-2, 3, profile.means[name].shape) for name in names}

    def change(values):
        factors = {name: factor.astype(np.float32) for name, factor in noise.items()}
        return {name: v * factors.get(name, np.float32(1)) for name, v in values.items()}

    monkeypatch.setattr(im, "forward", lambda *args: change(forward(*args)))
    monkeypatch.setattr(im, "compute", lambda *args: change(compute(*args)))
    for applies in (_zero_walk.applies, lambda *args: False):
        monkeypatch.setattr(_zero_walk, "applies", applies)
        found = nns.Slicer(im, profile, theta, **options).slice_each(x[:4], outputs=[0, 1])
        assert all(a == b for a, b in zip(found, expected, strict=True))
    # Without the bound, the last bits decide.
    plain = nns.Slicer(im, profile, 0.0, **options)
    vars(plain)["_rounding"] = {}
    found = plain.slice_each(x[:4], outputs=[0, 1])
    if theta == 0 and granularity == "activation":
        assert any(a != b for a, b in zip(found, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("network", ["lenet5", "text_transformer"])
def test_integers_are_the_same_on_every_processor(network, shared, monkeypatch):
    """AVX2 and AVX-512, one and two threads, batches of 1, 7 and 64, each in its own process.

    A few samples may differ by chance: a deviation, or a sum by which values are excluded, lies
    next to its bound. (One of 64 digits did at θ = 0.3.)
    """
    monkeypatch.setenv("GLUE_DIR", str(shared / "text"))
    folder = Path(__file__).parents[2] / "benchmarks"
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "from bench_integers import CONFIGURATIONS, in_new_process as run\n"
        "for theta in (0.0, 0.3):\n"
        f"    first, *others = [run(c, {network!r}, theta, 64) for c in CONFIGURATIONS]\n"
        "    for other in others:\n"
        "        pairs = zip(first['digests']['bound'], other['digests']['bound'], strict=True)\n"
        "        assert sum(a != b for a, b in pairs) <= 2\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
