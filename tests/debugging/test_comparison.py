"""Layers compared with those of a compressed model: closed forms, and real files."""

import re
import warnings

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import datasets, dflare, zoo
from nnslicer_tf.debugging import (
    compare_layers,
    counterpart_of,
    recipe,
)
from nnslicer_tf.debugging.litert import LiteRTGraph
from nnslicer_tf.errors import CorruptFileError, InputShapeError, InvalidArgumentError
from nnslicer_tf.instrument import copy_model
from nnslicer_tf.pruning.costs import to_litert


def changed(model, layer, change):
    """A copy of a model in which the kernel of one layer went through `change`."""
    copy = copy_model(model)
    weights = copy.get_layer(layer).get_weights()
    copy.get_layer(layer).set_weights([change(weights[0]), *weights[1:]])
    return copy


def coarse(levels):
    """Rounding to so many levels on either side of zero."""

    def change(weights):
        step = np.abs(weights).max() / levels
        return np.rint(weights / step) * step

    return change


def as_half_file(model):
    """The LiteRT file of a model, with weights of 16 bits."""
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


@pytest.fixture(scope="module")
def linear():
    inputs = keras.Input((3,))
    x = layers.Dense(4, name="first")(inputs)
    model = keras.Model(inputs, layers.Dense(2, name="second")(x))
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.weights])
    return model


def test_linear_networks_have_the_closed_form(linear):
    im = nns.InstrumentedModel(linear)
    x = np.random.default_rng(1).normal(size=(400, 3)).astype(np.float32)
    copy = changed(changed(linear, "first", coarse(2)), "second", coarse(3))
    found = compare_layers(im, copy, x, progress=False)
    (a, _, b, _), (a2, _, b2, _) = linear.get_weights(), copy.get_weights()
    signs = np.eye(2)[found.labels]
    signs = signs[:, 0] - signs[:, 1]
    hidden = found.x @ a2 + linear.get_weights()[1]
    by_first = -(found.x @ (a2 - a)) * (signs @ b.T)  # (samples, channels)
    by_second = -(hidden @ (b2 - b)) * signs
    fall = by_first.sum() + by_second.sum()
    np.testing.assert_allclose(found.channels["first"], by_first.sum(axis=0) / fall, rtol=1e-4)
    np.testing.assert_allclose(found.channels["second"], by_second.sum(axis=0) / fall, rtol=1e-4)
    outputs = copy(x).numpy(), linear(x).numpy()
    labels = np.stack([outputs[1].argmax(axis=1), outputs[0].argmax(axis=1)], axis=1)
    np.testing.assert_array_equal(found.labels, labels[labels[:, 0] != labels[:, 1]])
    # Without the error of the first layer: the second one's, on the first one's values, is held.
    logits = (found.x @ a + linear.get_weights()[1]) @ b + linear.get_weights()[3]
    logits += hidden @ (b2 - b)
    right = (logits.argmax(axis=1) == found.labels[:, 0]).mean()
    assert found.alone["first"] == pytest.approx(right)


def test_the_badly_rounded_layer_is_named(im, samples):
    for layer in ("first", "inner", "hidden", "logits"):
        copy = changed(im.model, layer, coarse(2))
        found = compare_layers(im, copy, samples, progress=False)
        assert found.ranking[0].kernel == layer
        assert found.causes[found.ranking[0].operation] == pytest.approx(1, abs=1e-3)
        assert found.alone[found.ranking[0].operation] == 1
        others = [p.operation for p in found.places if p.kernel != layer]
        assert max(found.errors["made"][name] for name in others) < 1e-6


def test_errors_add_up_and_switches_lead_from_one_model_to_the_other(im, samples):
    copy = im.model
    for layer in ("first", "inner", "hidden"):
        copy = changed(copy, layer, coarse(4))
    found = compare_layers(im, copy, samples, batch_size=7, progress=False)
    assert sum(found.causes.values()) == pytest.approx(1)
    names = [place.operation for place in found.places]
    np.testing.assert_array_equal(found.mended([(), names]), [0, 1])
    other = nns.InstrumentedModel(copy)
    values, own = other.capture(found.x), im.capture(found.x)
    for name in names:
        leaves = np.linalg.norm(values[name] - own[name]) / np.linalg.norm(own[name])
        assert found.errors["leaves"][name] == pytest.approx(leaves, rel=1e-4, abs=1e-6)
        total = found.errors["made"][name] + found.errors["passed"][name]
        assert found.errors["leaves"][name] <= total + 1e-6
    assert found.errors["enters"]["first:pre"] == 0 == found.errors["passed"]["first:pre"]
    table = found.to_frame()
    assert table["cause"].is_monotonic_decreasing and len(table) == len(names)
    assert table["weights"].sum() == pytest.approx(1)
    errors, causes = found.figure().axes
    assert [label.get_text() for label in errors.get_yticklabels()] == names
    assert [bar.get_width() for bar in causes.patches] == pytest.approx(
        [100 * found.causes[name] for name in names]
    )
    for most in (0, -1):
        with pytest.raises(InvalidArgumentError, match="most"):
            found.to_frame(most=most)
    channels = found.to_frame("channel", 5)
    first = channels.iloc[0]
    assert found.channels[first["operation"]][first["channel"]] == first["cause"]


FILES = {
    "float32": to_litert,
    "float16": as_half_file,
    "dynamic": lambda model: dflare.compress(model, "dynamic"),
    "integer": lambda model: dflare.compress(model, "int8", digits_images()[:100]),
    "16x8": lambda model: dflare.compress(model, "int16", digits_images()[:100]),
}


def digits_images(split="train"):
    return datasets.load("digits", split).x


@pytest.fixture(scope="module")
def digits_original():
    return nns.InstrumentedModel(dflare.with_softmax(zoo.load("digits_cnn")))


@pytest.mark.parametrize("kind", FILES)
def test_values_of_litert_files(digits_original, kind):
    """The values are those of the file's own interpreter, and near the model's."""
    im, x = digits_original, digits_images("test")[:40]
    content = FILES[kind](im.model)
    found = counterpart_of(im, content, x)
    values = found.values(x)
    np.testing.assert_allclose(
        values["probabilities"],
        dflare.as_classifier(content).probabilities(x),
        atol=1 / 256 if kind == "integer" else 1e-5,
    )
    assert {place.kernel for place in found.places} - {None} == set(im.kernels)
    own = im.capture(x)
    worst = {"float32": 1e-5, "float16": 1e-2, "dynamic": 0.05, "integer": 0.1, "16x8": 0.05}[kind]
    for place in found.places:
        difference = np.linalg.norm(values[place.operation] - own[place.operation])
        assert difference < worst * np.linalg.norm(own[place.operation])
    stored = {place.kernel: place.stored for place in found.places}
    assert stored["conv2"] == (kind if kind.startswith("float") else "int8")
    for name, kernel in found.kernels().items():
        step = np.abs(im.kernels[name].kernel()).max() / 127
        atol = {"float32": 0, "float16": 1e-3}.get(kind, step / 2 + 1e-6)
        np.testing.assert_allclose(kernel, im.kernels[name].kernel(), atol=atol)


def test_normalisations_that_were_folded_into_weights(im, samples):
    """The fixture has a normalisation behind a convolution, in a residual block."""
    found = counterpart_of(im, to_litert(im.model), samples)
    assert [place.kernel for place in found.places if place.kernel] == list(im.kernels)
    for name, kernel in found.kernels().items():
        np.testing.assert_allclose(kernel, im.kernels[name].kernel(), rtol=1e-4, atol=1e-5)
    twin = found.twin()
    np.testing.assert_allclose(twin(samples).numpy(), im.model(samples).numpy(), atol=1e-3)


def test_a_badly_rounded_layer_of_a_file(im, samples):
    """A float file of a copy with one coarse layer: the error is made there and nowhere else."""
    content = to_litert(changed(im.model, "inner", coarse(2)))
    found = compare_layers(im, content, samples, progress=False)
    first = found.ranking[0]
    assert first.kernel == "inner" and found.causes[first.operation] > 0.99
    assert found.alone[first.operation] == 1
    made = {name: size for name, size in found.errors["made"].items() if name != first.operation}
    assert max(made.values()) < 1e-5 < found.errors["made"][first.operation]
    twin = nns.InstrumentedModel(found.twin)
    np.testing.assert_array_equal(twin.logits(found.x).argmax(axis=1), found.labels[:, 1])


def test_what_cannot_be_compared(im, samples, linear, tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"compute the same on all 300 samples"):
        compare_layers(im, copy_model(im.model), samples, progress=False)
    with pytest.raises(InvalidArgumentError, match=r"'\w+' \(.*\) has no counterpart"):
        compare_layers(im, linear, samples, progress=False)
    with pytest.raises(InvalidArgumentError, match="must be a Keras model, or the path"):
        compare_layers(im, 3, samples, progress=False)
    with pytest.raises(CorruptFileError, match="TFL3"):
        compare_layers(im, b"nothing of the kind", samples, progress=False)
    with pytest.raises(InvalidArgumentError, match="Cannot read"):
        compare_layers(im, tmp_path / "none.tflite", samples, progress=False)
    with pytest.raises(InputShapeError):
        compare_layers(im, to_litert(linear), samples, progress=False)
    four = keras.Input(im.input_shape, batch_size=4)
    batches = to_litert(keras.Model(four, im.model(four)))
    with pytest.raises(InvalidArgumentError, match=r"only batches of 4 inputs"):
        compare_layers(im, batches, samples, progress=False)


def test_layers_without_counterpart_are_named(im, samples):
    x = layers.Dense(5, activation="relu", name="extra")(im.model.get_layer("hidden").output)
    longer = nns.InstrumentedModel(keras.Model(im.model.inputs, layers.Dense(3, name="last")(x)))
    with pytest.raises(InvalidArgumentError, match=r"Layer 'extra' \(kernel \(8, 5\)\).* has no"):
        compare_layers(longer, to_litert(im.model), samples, progress=False)
    softmax = nns.InstrumentedModel(dflare.with_softmax(im.model))
    with pytest.raises(InvalidArgumentError, match="'probabilities' has no counterpart"):
        compare_layers(softmax, to_litert(im.model), samples, progress=False)


def test_recipes(im, samples):
    copy = changed(changed(im.model, "first", coarse(2)), "hidden", coarse(6))
    found = compare_layers(im, copy, samples, progress=False)
    total = sum(kernel.size for kernel in im.kernels.values())
    share = im.kernels["first"].size / total
    small = recipe(found, share * 1.01)
    assert small.layers == ("first",) and small.weights == pytest.approx(share)
    # What it predicts is what a model without that error does, but for the held error of the rest.
    only = changed(im.model, "hidden", coarse(6))(found.x).numpy().argmax(axis=1)
    assert small.mended == pytest.approx((only == found.labels[:, 0]).mean(), abs=0.1)
    whole = recipe(found, 1.0)
    assert set(whole.layers) == {"first", "hidden"} and whole.mended == 1
    assert recipe(found, 1.0, whole.places[1:]).places == whole.places[1:]
    none = recipe(found, 1e-6)
    assert none.layers == () and none.mended == 0
    quantised = copy_model(im.model)
    quantised.quantize("int8", filters=lambda layer: _dense(layer) and whole.keras_filter(layer))
    assert quantised.get_layer("logits").quantization_mode == "int8"
    assert quantised.get_layer("hidden").quantization_mode is None
    with pytest.raises(InvalidArgumentError, match="budget"):
        recipe(found, 0.0)


def test_recipes_tell_the_converter(digits_original):
    im, x = digits_original, digits_images("test")
    content = FILES["integer"](im.model)
    file = counterpart_of(im, content, x)
    noisy = np.clip(x + np.random.default_rng(0).normal(0, 0.5, x.shape), 0, 1)
    found = compare_layers(im, content, noisy.astype(np.float32), progress=False)
    small = recipe(found, 0.2)
    assert small.layers and small.tensors() == small.tensors(to_litert(im.model))
    again = dflare.compress(im.model, "int8", digits_images()[:100], keep=small.tensors())
    stored = {p.kernel: p.stored for p in counterpart_of(im, again, x).places if p.kernel}
    names = {p.kernel for p in small.places}
    assert {kernel for kernel, kind in stored.items() if kind == "float32"} == names
    assert {p.stored for p in file.places if p.kernel} == {"int8"}
    entries = small.ai_edge()
    assert [e["algorithm_key"] for e in entries] == ["no_quantize"] * len(small.places)
    assert all(re.search(e["regex"], t) for e, t in zip(entries, small.tensors(), strict=True))
    for entry, tensor in zip(entries, small.tensors(), strict=True):
        assert re.search(entry["regex"], f"{tensor};")  # as the quantizer names a step
        assert not re.search(entry["regex"], f"{tensor}_1;")
        assert not re.search(entry["regex"], f"{tensor};{tensor};")
    with pytest.raises(InvalidArgumentError, match="kept 'int4'"):
        small.ai_edge(kept="int4")


def test_the_ai_edge_quantizer(digits_original):
    settings = pytest.importorskip("ai_edge_quantizer.recipe", reason="no ai-edge-quantizer")
    im, x = digits_original, digits_images("test")
    content = to_litert(im.model)
    keep = {"regex": "conv1", "operation": "*", "algorithm_key": "no_quantize"}
    for make, samples in ((settings.dynamic_wi8_afp32, None), (settings.static_wi8_ai8, x[:50])):
        made = dflare.compress(content, "ai_edge", samples, recipe=[*make(), keep])
        stored = {p.kernel: p.stored for p in counterpart_of(im, made, x).places if p.kernel}
        assert stored == {"conv1": "float32", "conv2": "int8", "logits": "int8"}


def test_layers_in_16_bits(digits_original):
    """A layer of 16 bits errs by the rounding of its activations alone."""
    settings = pytest.importorskip("ai_edge_quantizer.recipe", reason="no ai-edge-quantizer")
    im, x = digits_original, digits_images("test")
    noisy = np.clip(x + np.random.default_rng(0).normal(0, 0.5, x.shape), 0, 1).astype(np.float32)
    content, plain = to_litert(im.model), settings.static_wi8_ai8()
    file = dflare.compress(content, "ai_edge", x[:50], recipe=plain)
    found = compare_layers(im, file, noisy, progress=False)
    conv1 = next(place for place in found.places if place.kernel == "conv1")
    chosen = recipe(found, 0.1, [conv1])
    entries = chosen.ai_edge(content, "int16")
    mixed = dflare.compress(content, "ai_edge", x[:50], recipe=[*plain, *entries])
    graph = LiteRTGraph(mixed, im.input_shape)
    stored = {s.kind: graph.stored(s.inputs[0]) for s in graph.steps if s.weights is not None}
    kinds = [graph.stored(s.inputs[0]) for s in graph.steps if s.kind == "CONV_2D"]
    assert kinds == ["int16", "int8"] and stored["FULLY_CONNECTED"] == "int8"
    rounded, weights = (
        compare_layers(im, one, noisy, progress=False).errors["made"]["relu1"]
        for one in (file, mixed)
    )
    kernel = im.kernels["conv1"].kernel()
    twin = counterpart_of(im, mixed, x).twin().get_layer("conv1").kernel
    assert np.abs(kernel - twin).max() > 0 and weights < rounded


def _dense(layer):
    return isinstance(layer, layers.Dense)


@pytest.fixture(scope="module")
def sentences():
    words = np.random.default_rng(1).integers(1, 14_000, (200, 9))
    words[:150, 6:] = 0
    return words.astype(np.float32)


@pytest.fixture(scope="module")
def transformer(sentences):
    """A transformer of words, whose biases and means are not 0, between its two classes."""
    model = zoo.build("text_transformer", (9,))
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, w.size**-0.25, w.shape) for w in model.get_weights()])
    bias = model.get_layer("logits").bias
    bias.assign(bias - model(sentences).numpy().mean(axis=0))
    return nns.InstrumentedModel(model)


def test_transformers_have_counterparts(transformer, sentences):
    im = transformer
    found = counterpart_of(im, to_litert(im.model), sentences)
    assert {place.kernel for place in found.places} - {None} == set(im.kernels)
    names = {place.operation for place in found.places}
    parts = ("query", "key", "value", "scores", "probabilities", "context")
    assert names >= {f"block{b}_attention/{part}" for b in (1, 2) for part in parts}
    assert names >= {"positions/add", "block1_norm1", "block2_mlp1", "block2_add2", "average"}
    assert not names & {"words", "embedding:mask", "block1_attention/mask"}
    own, values = im.capture(sentences), found.values(sentences)
    data = sentences > 0
    for name in names - {"block1_attention/scores", "block2_attention/scores"}:
        first, second = own[name], values[name]
        if im[name].shape[0] == 9:  # padding is computed, too, and not used
            first, second = first[data], second[data]
        np.testing.assert_allclose(second, first, rtol=2e-3, atol=2e-4, err_msg=name)
    for name, kernel in found.kernels().items():
        np.testing.assert_array_equal(kernel, im.kernels[name].kernel())


@pytest.mark.parametrize("kernel", ["embedding", "block1_attention/key", "block2_mlp2"])
def test_a_badly_rounded_layer_of_a_transformer(transformer, sentences, kernel):
    """A float file of a copy with one coarse kernel: the error is made there and nowhere else."""
    copy = copy_model(transformer.model)
    variable = nns.InstrumentedModel(copy).kernels[kernel].variable()
    variable.assign(coarse(1)(np.asarray(variable)))
    found = compare_layers(transformer, to_litert(copy), sentences, progress=False)
    assert found.ranking[0].kernel == kernel
    assert found.causes[found.ranking[0].operation] == pytest.approx(1, abs=0.01)
    assert found.alone[found.ranking[0].operation] == 1
    made = {place.operation: found.errors["made"][place.operation] for place in found.places}
    assert max(made, key=made.get) == found.ranking[0].operation
    assert sorted(made.values())[-2] < 1e-4
    twin = nns.InstrumentedModel(found.twin)
    np.testing.assert_array_equal(twin.logits(found.x).argmax(axis=1), found.labels[:, 1])
    assert recipe(found, 1.0).layers[0] == kernel.partition("/")[0]


def test_recurrent_layers_have_no_counterpart(sentences):
    """The error names them, and what was recognised."""
    inputs = keras.Input((9,), dtype="int32")
    x = layers.Embedding(14_000, 4, name="words")(inputs)
    x = layers.SimpleRNN(3, unroll=True, name="rnn")(x)
    model = keras.Model(inputs, layers.Dense(2, name="last")(x))
    im = nns.InstrumentedModel(model)
    message = r"'rnn/kernel' .* with one: 'words'\. .*recurrent layers"
    with pytest.raises(InvalidArgumentError, match=message):
        counterpart_of(im, to_litert(model), sentences)


def test_files_with_free_axes():
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, None, 3))
    y = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 5, activation="relu")(inputs))
    output = layers.Dense(3, activation="softmax", kernel_initializer="random_normal")(y)
    model = keras.Model(inputs, output)
    x = np.random.default_rng(0).normal(size=(300, 12, 10, 3)).astype(np.float32)
    im = nns.InstrumentedModel(model, (12, 10, 3))
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([sample[None]] for sample in x[:30])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = converter.convert()
    found = compare_layers(im, file, x, progress=False)
    assert 0 < len(found.rows) < found.given == 300
    assert sum(found.causes.values()) == pytest.approx(1)
