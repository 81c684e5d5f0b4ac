"""Functions of users that are called like Keras's: copies keep them, and masks act on them."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf import instrument, pruning


def relu(x):
    return 2 * ops.maximum(x, 0) + 1


def tanh(x):
    return ops.sin(x)


def softmax(x):
    return ops.softmax(3 * x)


def nested():
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation=relu)], name="inner")
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(2)(inner(inputs)))


MODELS = {
    "fused": lambda: [keras.Input((4,)), layers.Dense(5, activation=relu), layers.Dense(2)],
    "layer": lambda: [keras.Input((4,)), layers.Dense(5), layers.Activation(relu), layers.Dense(2)],
    "last": lambda: [keras.Input((4,)), layers.Dense(3, activation=softmax)],
    "recurrent": lambda: [keras.Input((4, 3)), layers.SimpleRNN(3, activation=tanh)],
    "both ways": lambda: [
        keras.Input((4, 3)),
        layers.Bidirectional(layers.GRU(2, activation=tanh)),
    ],
    "distributed": lambda: [
        keras.Input((4, 3)),
        layers.TimeDistributed(layers.Dense(2, activation=relu)),
    ],
    "nested": nested,
}


def made(name):
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    return keras.Sequential(model) if isinstance(model, list) else model


def samples(model):
    return np.random.default_rng(1).normal(size=(6, *model.input_shape[1:])).astype(np.float32)


@pytest.mark.parametrize("name", MODELS)
def test_copies_compute_what_the_model_computes(name):
    model = made(name)
    x = samples(model)
    copy = instrument.copy_model(model)
    np.testing.assert_allclose(copy(x), model(x), atol=1e-6)
    assert not {id(w) for w in copy.weights} & {id(w) for w in model.weights}


@pytest.mark.parametrize("name", ["fused", "layer", "nested"])
def test_masked_models_and_pruning_keep_them(name):
    model = made(name)
    x = samples(model)
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(x), model(x), atol=1e-5)
    keep = {kernel: np.ones(k.shape, bool) for kernel, k in im.kernels.items()}
    np.testing.assert_allclose(instrument.Ablation(im, "zero").model(keep)(x), model(x), atol=1e-6)
    pruned = pruning.prune(model, pruning.scores(im, "weight"), 0.0)
    np.testing.assert_allclose(pruned(x), model(x), atol=1e-6)
    profile = nns.Profile.from_data(im, x, progress=False)
    copy = instrument.Ablation(im, profile).model(keep)
    np.testing.assert_allclose(copy(x), model(x), atol=1e-5)


def test_a_changed_entry_of_the_config_is_not_undone():
    model = made("fused")
    first = model.layers[0]
    copy = instrument.copies.rebuild(model, configs={id(first): {"activation": "linear"}})
    x = samples(model)
    expected = (x @ first.kernel.numpy() + first.bias.numpy()) @ model.layers[1].kernel.numpy()
    np.testing.assert_allclose(copy(x), expected + model.layers[1].bias.numpy(), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*includes a `lambda`:UserWarning")
def test_a_lambda_is_refused_by_name():
    dense = layers.Dense(3, activation=lambda v: ops.relu(v) + 1, name="odd")
    model = keras.Sequential([keras.Input((4,)), dense])
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'odd' .* cannot be copied"):
        instrument.copy_model(model)


# Layers inside a TimeDistributed layer, and the same layers without it.
DISTRIBUTED = {
    "activation": lambda: [layers.Dense(5, activation=relu)],
    "layer": lambda: [layers.Dense(5), layers.Activation(relu)],
    "function": lambda: [layers.Dense(5), layers.Lambda(relu)],
    "smooth": lambda: [layers.Dense(5, activation=tanh), layers.Dense(4, activation=relu)],
}


def over_time(build, distributed, masked):
    keras.utils.set_random_seed(0)
    x = value = keras.Input((4, 3))
    value = layers.Masking()(value) if masked else value
    for layer in build():
        value = layers.TimeDistributed(layer)(value) if distributed else layer(value)
    value = layers.GlobalAveragePooling1D()(value)
    return keras.Model(x, layers.Dense(3, activation="softmax")(value))


# Without TimeDistributed, a Lambda drops the mask, so that its twin would be another model.
@pytest.mark.parametrize(
    ("name", "masked"),
    [(n, m) for n in DISTRIBUTED for m in (False, True) if (n, m) != ("function", True)],
)
def test_own_functions_at_every_time_step(name, masked):
    model, twin = (over_time(DISTRIBUTED[name], d, masked) for d in (True, False))
    twin.set_weights(model.get_weights())
    x = samples(model)
    x[::2, 3:] = 0
    expected = twin.predict(x, verbose=0)
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(x), expected, atol=1e-6)
    np.testing.assert_allclose(pruning.compact(model)(x), expected, atol=1e-6)
    # Masks: all of the weights, and half of them, which are then zero in the twin.
    rng = np.random.default_rng(0)
    masks = {kernel: rng.random(k.shape) < 0.5 for kernel, k in im.kernels.items()}
    ablation = instrument.Ablation(im, "zero", of=list(im.kernels))
    keep = {kernel: np.ones(k.shape, bool) for kernel, k in im.kernels.items()}
    np.testing.assert_allclose(ablation.model(keep)(x), expected, atol=1e-6)
    for kernel, mask in zip(nns.InstrumentedModel(twin).kernels.values(), masks.values()):
        kernel.variable().assign(np.where(mask, kernel.kernel(), 0))
    np.testing.assert_allclose(
        ablation.model(masks)(x), twin.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )
    twin.set_weights(model.get_weights())
    # Slices are those of the layers without a TimeDistributed layer.
    slices = []
    for one in (model, twin):
        profile = nns.Profile.from_data(one, x, progress=False)
        slices.append(nns.Slicer(one, profile, theta=0.1, progress=False).slice(x).synapses)
    for first, second in zip(*(s.values() for s in slices), strict=True):
        np.testing.assert_array_equal(first, second)
