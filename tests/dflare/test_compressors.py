import sys

import keras
import numpy as np
import pytest
from keras import layers

from nnslicer_tf.dflare import (
    ModelPair,
    agreement,
    as_classifier,
    compress,
    compressors,
    with_softmax,
)
from nnslicer_tf.errors import (
    InvalidArgumentError,
    MissingPackageError,
    SeveralInputsError,
    UnsupportedLayerError,
)


@pytest.fixture(autouse=True)
def unchanged(model):
    """No compressor changes the model that it is given."""
    before = model.get_weights()
    yield
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def kernels(model):
    return [weight for weight in model.get_weights() if weight.ndim > 1]


def vectors(model):
    return [weight for weight in model.get_weights() if weight.ndim == 1]


def test_with_softmax(model, inputs):
    logits = keras.Model(model.inputs, model.layers[-2].output).predict(inputs, verbose=0)
    exponentials = np.exp(logits.astype(np.float64))
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), expected, atol=1e-6)


def test_quantised_models_are_close_and_small(model, inputs):
    exact = model.predict(inputs, verbose=0)
    dynamic, integer = (compress(model, *how) for how in (("dynamic",), ("int8", inputs)))
    weights = sum(weight.size for weight in kernels(model))
    for content in (dynamic, integer):
        classifier = as_classifier(content)
        assert 0 < np.abs(classifier.probabilities(inputs) - exact).max() < 0.05
        assert len(content) < 4 * weights + 8000
    assert as_classifier(dynamic).resolution == 0
    # an integer model's probabilities are multiples of 1/256
    classifier = as_classifier(integer)
    assert classifier.resolution == 1 / 256
    steps = classifier.probabilities(inputs) * 256
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("method", ["int8", "int16"])
def test_integers_need_samples(model, inputs, method):
    with pytest.raises(InvalidArgumentError, match="data set is empty"):
        compress(model, method, inputs[:0])
    with pytest.raises(InvalidArgumentError, match="needs samples"):
        compress(model, method)


def test_activations_of_16_bits_are_nearer(model, inputs):
    exact = model.predict(inputs, verbose=0)
    classifier = as_classifier(compress(model, "int16", inputs))
    assert classifier.resolution == 1 / 32768
    steps = classifier.probabilities(inputs) * 32768
    np.testing.assert_array_equal(steps, np.rint(steps))
    coarse = as_classifier(compress(model, "int8", inputs)).probabilities(inputs)
    assert np.abs(steps / 32768 - exact).mean() < np.abs(coarse - exact).mean()


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9])
def test_pruning_zeroes_the_smallest_weights(model, ratio):
    pruned = compress(model, "prune", ratio=ratio)
    for old, new in zip(kernels(model), kernels(pruned), strict=True):
        zero = new == 0
        assert zero.sum() == int(ratio * old.size)
        np.testing.assert_array_equal(new[~zero], old[~zero])
        assert not zero.any() or np.abs(old[zero]).max() <= np.abs(old[~zero]).min()
    for old, new in zip(vectors(model), vectors(pruned), strict=True):
        np.testing.assert_array_equal(old, new)


def test_single_layers_are_pruned(model):
    name = next(layer.name for layer in model.layers if isinstance(layer, keras.layers.Conv2D))
    pruned = compress(model, "prune", layers=[name])
    for layer, copy in zip(model.layers, pruned.layers, strict=True):
        for old, new in zip(layer.get_weights(), copy.get_weights(), strict=True):
            if layer.name == name and old.ndim > 1:
                assert (new == 0).sum() == old.size // 2
            else:
                np.testing.assert_array_equal(old, new)
    with pytest.raises(InvalidArgumentError, match="Unknown layer 'missing'"):
        compress(model, "prune", layers=["missing"])


def endings():
    """Models that end in a softmax or sigmoid, written in different ways."""
    inputs = keras.Input((4,))
    logits = keras.layers.Dense(3)(inputs)
    softmax = keras.Model(inputs, keras.layers.Softmax()(logits))
    return {
        "layer": softmax,
        "argument": keras.Sequential([inputs, keras.layers.Dense(3, activation="softmax")]),
        "activation": keras.Model(inputs, keras.layers.Activation("softmax")(logits)),
        "operation": keras.Model(inputs, keras.ops.softmax(logits)),
        "nested": keras.Sequential([keras.Input((4,)), keras.models.clone_model(softmax)]),
        "cast": keras.Model(inputs, keras.layers.Activation("linear")(softmax(inputs))),
        "reshaped": keras.Model(inputs, keras.layers.Reshape((3, 1))(softmax(inputs))),
        "mean": keras.Model(inputs, keras.layers.Average()([softmax(inputs), softmax(-inputs)])),
        "sigmoid": keras.Model(inputs, keras.layers.Dense(3, activation="sigmoid")(inputs)),
    }


@pytest.mark.parametrize("name", endings())
def test_no_second_softmax(name):
    with pytest.raises(InvalidArgumentError, match="already: it gives probabilities"):
        with_softmax(endings()[name])


class Subclassed(keras.Model):
    """A model without symbolic outputs and without a config."""

    def __init__(self):
        super().__init__()
        self.units = keras.layers.Dense(3)

    def call(self, x):
        return self.units(x)


def called():
    model = Subclassed()
    model(np.zeros((1, 4), np.float32))
    return model


def of_words():
    words = keras.Input((6,), dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(5, 3)(words))
    return keras.Model(words, keras.layers.Dense(2)(x))


def with_two_inputs():
    a, b = keras.Input((4,)), keras.Input((2,))
    return keras.Model([a, b], keras.layers.Dense(2)(keras.layers.Concatenate()([a, b])))


def with_two_outputs():
    a = keras.Input((4,))
    return keras.Model(a, [keras.layers.Dense(2)(a), keras.layers.Dense(3)(a)])


def plain():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="units")])


def unbuilt():
    return keras.Sequential([keras.layers.Dense(3)])


SAMPLES = np.ones((3, 4), np.float32)
INTEGER = {"8 bits": "int8", "16 bits": "int16"}
REFUSED = {
    "softmax of a subclass": (called, with_softmax, "is subclassed"),
    "softmax, not built": (unbuilt, with_softmax, "not built"),
    "softmax of two": (with_two_outputs, with_softmax, "has 2 outputs"),
    "dynamic, not built": (unbuilt, lambda m: compress(m, "dynamic"), "not built"),
    "pruned subclass": (called, lambda m: compress(m, "prune"), "not define get_config"),
    "pruned, not built": (unbuilt, lambda m: compress(m, "prune"), "not built"),
    "text": (plain, lambda m: compress(m, "int8", SAMPLES, keep="units"), "list of names"),
    "name": (plain, lambda m: compress(m, "int8", SAMPLES, keep=["uints"]), "tensor 'uints'"),
    **{
        f"{what} to {name}": (model, lambda m, how=how: compress(m, how, SAMPLES), message)
        for name, how in INTEGER.items()
        for what, model, message in (
            ("words", of_words, "takes int32"),
            ("two inputs", with_two_inputs, "has 2 inputs"),
            ("subclass", called, "is subclassed"),
        )
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_cannot_be_compressed(case):
    make, act, message = REFUSED[case]
    error = SeveralInputsError if "2 inputs" in message else InvalidArgumentError
    with pytest.raises(error, match=message):
        act(make())


def test_bad_options(model):
    for ratio in (-0.1, 1.0):
        with pytest.raises(InvalidArgumentError, match="ratio"):
            compress(model, "prune", ratio=ratio)
    with pytest.raises(InvalidArgumentError, match="Did you mean 'prune'"):
        compress(model, "prun")


def test_the_ai_edge_quantizer_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer.quantizer", None)
    with pytest.raises(MissingPackageError, match="pip install ai-edge-quantizer"):
        compress(b"any", "ai_edge")
    with pytest.raises(InvalidArgumentError, match="takes a floating-point TFLite file's content"):
        compress(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]), "ai_edge")


def test_what_tensorflow_cannot_convert_is_said():
    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(keras.layers.LSTM(2)(x)))
    with pytest.raises(UnsupportedLayerError, match="recurrent layers"):
        compress(model, "dynamic")


@pytest.mark.parametrize("name", ["in", "class", "x y", "naïve"])
def test_names_that_the_converter_does_not_take_are_said(name):
    model = keras.Sequential([keras.Input((6,), name=name), keras.layers.Dense(2, "softmax")])
    with pytest.raises(UnsupportedLayerError, match="an input with a name like 'class'"):
        compress(model, "dynamic")


@pytest.mark.parametrize("case", ["zeros", "bytes", "tiny", "dead"])
def test_calibration_that_leaves_a_tensor_without_a_range(case, monkeypatch):
    """The file was returned; running it aborted the process, or it was called damaged."""
    keras.utils.set_random_seed(0)
    layer = layers.Dense(6, "relu")
    model = keras.Sequential([keras.Input((4,)), layer, layers.Dense(3, activation="softmax")])
    x = np.random.default_rng(0).random((50, 4)).astype(np.float32)
    samples = {"zeros": 0 * x, "bytes": x.astype(np.uint8), "tiny": 1e-30 * x, "dead": x}[case]
    if case == "dead":
        layer.bias.assign([-100] * 6)
    with pytest.raises(InvalidArgumentError, match="was 0 for all samples of its calibration"):
        compress(model, "int8", samples)
    monkeypatch.setattr(compressors, "LiteRTModel", lambda *_: None)
    content = compress(model, "int8", samples)  # as another program might write it
    with pytest.raises(InvalidArgumentError, match="LiteRT cannot run the model"):
        ModelPair(model, content)
    if case != "dead":
        assert compress(model, "int16", samples)


def test_parts_that_are_0_beside_others_have_a_range():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    h = layers.Dense(6, "relu")(inputs)
    added = layers.Add()([h, layers.Dense(6, kernel_initializer="zeros")(h)])
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(added))
    x = np.random.default_rng(0).random((50, 4)).astype(np.float32)
    found = agreement(ModelPair(model, compress(model, "int8", x)), x)
    assert found.distance.max() < 0.02
