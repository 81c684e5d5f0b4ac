"""Nested models and recurrent layers that become smaller, and slices that are applied to them."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import pruning, semantic

RNG = np.random.default_rng(0)


def transfer():
    stack = [layers.Conv2D(8, 3, activation="relu", name="conv"), layers.GlobalAveragePooling2D()]
    base = keras.Sequential([keras.Input((6, 6, 3)), *stack], name="base")
    head = keras.Sequential([keras.Input((8,)), layers.Dense(3, name="dense")], name="head")
    inputs = keras.Input((6, 6, 3))
    return keras.Model(inputs, head(base(inputs)))


def deep():
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(8, "relu", name="b")], name="in")
    entry = keras.Input((6,))
    outer = keras.Model(entry, inner(layers.Dense(8, "relu", name="a")(entry)), name="out")
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(3)(outer(inputs)))


def twice():
    stack = [layers.Dense(8, "relu", name="a"), layers.Dense(4, "relu", name="b")]
    tower = keras.Sequential([keras.Input((6,)), *stack], name="tower")
    one, other = keras.Input((6,)), keras.Input((6,))
    both = layers.Concatenate()([tower(one), tower(other)])
    return keras.Model([one, other], layers.Dense(2)(both))


CASES = {
    "transfer": (transfer, "base/conv", (6, 6, 3)),
    "deep": (deep, "out/a", (6,)),
    "deep inside": (deep, "out/in/b", (6,)),
    "twice": (twice, "tower/a", (6,)),
}


@pytest.mark.parametrize("name", CASES)
def test_units_inside_are_removed(name):
    """The kernel's columns are set to zero by hand, its bias as well: ReLU units are then 0."""
    build, layer, shape = CASES[name]
    model = build()
    x = [RNG.normal(size=(5, *shape)).astype(np.float32) for _ in model.inputs]
    x = x if len(x) > 1 else x[0]
    keep = np.arange(8) < 5
    small = pruning.remove_units(model, {layer: keep})
    own = model
    for part in layer.split("/"):
        own = own.get_layer(part)
    kernel, bias = own.get_weights()
    own.set_weights([kernel * keep, bias * keep])
    np.testing.assert_allclose(small(x), model(x), rtol=1e-5, atol=1e-6)
    assert small.count_params() < model.count_params()
    assert pruning.compact(model).count_params() == small.count_params()


def test_nested_models_shrink_and_take_slices_with_means():
    model = transfer()
    x = RNG.normal(size=(60, 6, 6, 3)).astype(np.float32)
    im = nns.InstrumentedModel(model)
    small = pruning.shrink(model, x, np.arange(60) % 3, classes=[0, 2], ratio=0.4, progress=False)
    assert small.model.output_shape == (None, 2)
    assert small.after.parameters <= 0.6 * small.before.parameters
    profile = nns.Profile.from_data(im, x, progress=False)
    one = nns.Slicer(im, profile, theta=0.3, progress=False).slice(x[:1])
    # The last sum by hand, from the values that the masked part gives it.
    applied = nns.InstrumentedModel(one.apply(model, profile))
    (pooled,) = im["head/dense"].inputs
    kernel = im.kernels["head/dense"].kernel()
    mask = one.synapse_mask()["head/dense"]
    hidden = applied.capture(x[:4], of=[pooled])[pooled]
    expected = (hidden - profile.means[pooled]) @ (kernel * mask) + profile.means["head/dense"]
    np.testing.assert_allclose(applied.logits(x[:4]), expected, rtol=1e-4, atol=1e-5)
    kept = {n: np.ones_like(v) for n, v in one.synapses.items()}
    whole = nns.Slice(one.neurons, kept, {}).apply(model, profile)
    np.testing.assert_allclose(whole(x[:4]), model(x[:4]), rtol=1e-4, atol=1e-5)


def test_slices_apply_with_the_shape_that_was_given():
    inputs = keras.Input((None, None, 3))
    hidden = layers.GlobalMaxPooling2D()(layers.Conv2D(4, 3, activation="relu")(inputs))
    model = keras.Model(inputs, layers.Dense(3)(hidden))
    im = nns.InstrumentedModel(model, input_shape=(8, 8, 3))
    x = RNG.normal(size=(6, 8, 8, 3)).astype(np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    one = nns.Slicer(im, profile, theta=0.3, progress=False).slice(x[:1])
    by_model, by_view = one.apply(model, "zero"), one.apply(im, "zero")
    assert by_model.input_shape == (None, None, None, 3)
    np.testing.assert_array_equal(by_model(x), by_view(x))
    with pytest.raises(nns.errors.InputShapeError, match="not fixed"):
        one.apply(
            keras.models.clone_model(model), "zero"
        )  # which was not instrumented with a shape


@pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_the_units_of_recurrent_layers_are_candidates(layer):
    model = keras.Sequential([keras.Input((7, 4)), layer(12), layers.Dense(3, "softmax")])
    x = RNG.normal(size=(60, 7, 4)).astype(np.float32)
    small = pruning.shrink(
        model, x, np.arange(60) % 3, classes=[0, 1, 2], ratio=0.5, progress=False
    )
    assert small.model.layers[0].units < 12
    assert small.after.parameters <= 0.5 * small.before.parameters
    units, gates = 12, {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}[layer.__name__]
    assert small.before.multiply_adds == 7 * gates * units * (4 + units) + units * 3


def test_masks_of_neurons_and_of_each_sample():
    model = transfer()
    im = nns.InstrumentedModel(model)
    x = RNG.normal(size=(5, 6, 6, 3)).astype(np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    masked = nns.instrument.Ablation(im, profile)
    kernels = {n: RNG.random((5, *k.shape)) < 0.5 for n, k in im.kernels.items()}
    together = masked.outputs(kernels, x)
    for i in range(5):
        own = {n: m[i] for n, m in kernels.items()}
        alone = masked.outputs(own, x[i : i + 1])
        np.testing.assert_allclose(together[i], alone[0], rtol=1e-4, atol=1e-5)
    keep = np.arange(8) < 5
    channels = nns.instrument.Ablation(im, "zero", "channel")
    name = next(n for n in channels.shapes if n.startswith("base/conv"))
    by_units = semantic.masked(model, {"base/conv": keep})
    by_channels = channels.outputs({name: keep}, x)
    np.testing.assert_allclose(by_channels, by_units(x), rtol=1e-4, atol=1e-5)
    # With no channel active, the rest reads the means of the last convolution.
    above = nns.instrument.Ablation(im, profile, "channel")
    last = list(above.shapes)[-1]
    mean = keras.ops.convert_to_tensor(profile.means[last][None].astype(np.float32))

    def injected(operation, value):
        return mean if operation == last else value

    expected = im.graph.run(x, [im.logit_operation], injected)[im.logit_operation]
    found = above.outputs(np.zeros(above.units), x)
    np.testing.assert_allclose(found, np.tile(expected, (5, 1)), rtol=1e-4, atol=1e-5)
