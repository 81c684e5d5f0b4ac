"""Layers compared with those of copies that Keras made: quantised, with other weights."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import dflare
from nnslicer_tf.debugging import compare_layers, counterpart_of
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import copy_model


def test_models_that_keras_quantised(im, samples):
    copy = copy_model(im.model)
    copy.quantize("int8", filters="hidden")
    found = compare_layers(im, copy, samples, progress=False)
    assert found.ranking[0].operation == "hidden" and found.ranking[0].stored == "int8"
    assert found.causes["hidden"] == pytest.approx(1, abs=1e-3)
    step = np.abs(im.kernels["hidden"].kernel()).max() / 127
    twin = found.counterpart.kernels()["hidden"]
    np.testing.assert_allclose(twin, im.kernels["hidden"].kernel(), atol=step)


def dense_model(sizes, sequential):
    keras.utils.set_random_seed(2)
    parts = [layers.Dense(n, activation="relu", name=f"dense{i}") for i, n in enumerate(sizes)]
    parts.append(layers.Dense(3, name="logits"))
    if sequential:
        return keras.Sequential([keras.Input((200,)), *parts])
    inputs = x = keras.Input((200,))
    for part in parts:
        x = part(x)
    return keras.Model(inputs, x)


@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("sequential", [False, True])
def test_twins_of_models_that_keras_quantised(mode, sequential):
    """In the mode int4 groups of 128 inputs have a scale and a zero each, on 200 inputs two."""
    model = dense_model([20, 8], sequential)
    model.get_layer("logits").bias.assign([1.0, -1.0, 0.5])
    quantised = copy_model(model)
    quantised.quantize(mode, filters="dense|logits")
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(0).normal(size=(500, 200)).astype(np.float32)
    found = counterpart_of(im, quantised, x)
    for name, kernel in found.kernels().items():
        own = im.kernels[name].kernel()
        levels = {"int8": 127, "int4": 7}[mode]
        np.testing.assert_allclose(kernel, own, atol=np.abs(own).max() / levels)
    twin = found.twin()(x).numpy()
    outputs, exact = (m(x).numpy() for m in (quantised, model))
    near, far = (np.linalg.norm(part - outputs) for part in (twin, exact))
    # Rounded weights are all that Keras's int4 layers have; those of int8 round inputs as well.
    assert near < 1e-3 * np.linalg.norm(outputs) if mode == "int4" else near < 2 * far
    values = found.values(x[:5])["logits"]
    np.testing.assert_allclose(values, outputs[:5], atol=1e-4)


def test_other_quantised_layers_have_no_twin():
    model = dense_model([8], False)
    quantised = copy_model(model)
    quantised.quantize("float8", filters="dense|logits")
    im = nns.InstrumentedModel(model)
    found = counterpart_of(im, quantised, np.zeros((1, 200), np.float32))
    assert found.values(np.ones((2, 200), np.float32))["logits"].shape == (2, 3)
    with pytest.raises(InvalidArgumentError, match=r"'dense0' is a Dense .* mode 'float8'"):
        found.twin()


def test_quantised_layers_that_compute_otherwise_have_no_twin():
    """A layer of a Keras version to come, whose scales are used in another way."""
    model = dense_model([8], False)
    quantised = copy_model(model)
    quantised.quantize("int8", filters="dense|logits")
    layer = quantised.get_layer("dense0")
    im = nns.InstrumentedModel(model)
    found = counterpart_of(im, quantised, np.zeros((1, 200), np.float32))
    found.twin()
    layer.quantized_call = lambda x: keras.ops.relu(x @ keras.ops.cast(layer.kernel, "float32"))
    with pytest.raises(InvalidArgumentError, match="'dense0' does not compute with"):
        found.twin()


def test_a_twin_has_all_weights_of_a_keras_copy(im, samples):
    """Biases and normalisations too: it is the copy."""
    copy = copy_model(im.model)
    rng = np.random.default_rng(0)
    copy.set_weights([w + 0.1 * rng.random(w.shape) for w in copy.get_weights()])
    expected = copy(samples).numpy()
    twin = compare_layers(im, copy, samples, progress=False).twin
    np.testing.assert_allclose(twin(samples).numpy(), expected, rtol=1e-5)
    quantised = copy_model(copy)
    quantised.quantize("int8", filters="hidden")
    twin = counterpart_of(im, quantised, samples).twin()
    for own, other in zip(twin.layers, copy.layers, strict=True):
        if own.name != "hidden":
            for one, two in zip(own.get_weights(), other.get_weights(), strict=True):
                np.testing.assert_array_equal(one, two)


def test_rounding_by_mixed_precision_is_not_overlooked(im, samples):
    copy = nns.instrument.copy_model(im.model)
    for layer in copy.layers[:-1]:
        layer.dtype_policy = "mixed_bfloat16"
    with pytest.raises(InvalidArgumentError, match=r"computes in float32 .* in bfloat16"):
        compare_layers(im, copy, samples, progress=False)


def test_a_copy_without_the_preprocessing_is_compared_after_it():
    """The result is that of the two models alone, on prepared samples."""
    model = dense_model([8], False)
    copy = copy_model(model)
    copy.get_layer("dense0").kernel.assign(np.round(copy.get_layer("dense0").kernel, 1))
    x = np.random.default_rng(0).integers(0, 256, (30, 200)).astype(np.float32)
    scaled = x / np.float32(255)
    plain = compare_layers(nns.InstrumentedModel(model), copy, scaled, by="values", progress=False)
    layer = layers.Rescaling(1 / 255)
    bound = nns.InstrumentedModel(model, preprocess=lambda x: x / 255, bounds=(0, 255))
    shared = nns.InstrumentedModel(model, preprocess=layer)
    for im, compressed in (
        (bound, copy),
        (bound, nns.InstrumentedModel(copy)),
        (bound, dflare.compress(copy, "dynamic")),
        (shared, nns.InstrumentedModel(copy, preprocess=layer)),
    ):
        found = compare_layers(im, compressed, x, by="values", progress=False)
        if isinstance(compressed, bytes):
            assert found.errors["made"]["logits"] < 0.05
            continue
        assert found.causes["dense0:pre"] == pytest.approx(plain.causes["dense0:pre"], rel=1e-3)
        np.testing.assert_allclose(found.labels, plain.labels)
    found = compare_layers(bound, copy, x, by="values", progress=False)
    np.testing.assert_allclose(found.x, scaled)
    with pytest.raises(InvalidArgumentError, match="no counterpart"):
        compare_layers(bound, dense_model([9], False), x, progress=False)
