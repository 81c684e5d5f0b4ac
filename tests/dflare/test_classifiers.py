import keras
import numpy as np
import pytest

from nnslicer_tf.dflare import as_classifier
from nnslicer_tf.dflare.classifiers import KerasClassifier, TFLiteClassifier
from nnslicer_tf.errors import CorruptFileError, InputShapeError, InvalidArgumentError


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Conv2D(5, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(0).normal(size=(11, 6, 6, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def lite(model):
    import tensorflow as tf

    return tf.lite.TFLiteConverter.from_keras_model(model).convert()


def expected(model, inputs):
    """The model's outputs in float64, by hand."""
    kernel, bias, dense, dense_bias = (w.astype(np.float64) for w in model.get_weights())
    patches = np.lib.stride_tricks.sliding_window_view(inputs, (3, 3), axis=(1, 2))
    hidden = np.maximum(np.einsum("nijcab,abco->nijo", patches, kernel) + bias, 0)
    logits = hidden.reshape(len(inputs), -1) @ dense + dense_bias
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_keras_outputs_do_not_depend_on_padding(model, inputs, batch_size):
    got = KerasClassifier(model, batch_size).probabilities(inputs)
    np.testing.assert_allclose(got, expected(model, inputs), atol=1e-6)


def test_keras_answers_do_not_depend_on_the_company(model, inputs):
    """But for the last bits, on processors whose kernels sum some rows in another order."""
    classifier = KerasClassifier(model, 8)
    whole = classifier.probabilities(inputs)
    order = np.random.default_rng(1).permutation(len(inputs))
    np.testing.assert_allclose(classifier.probabilities(inputs[order]), whole[order], rtol=1e-6)
    alone = np.concatenate([classifier.probabilities(x[None]) for x in inputs])
    np.testing.assert_allclose(alone, whole, rtol=1e-6)
    np.testing.assert_array_equal(classifier.probabilities(inputs), whole)


@pytest.mark.parametrize("workers", [1, 3])
def test_tflite_float_model_matches(model, lite, inputs, workers):
    got = TFLiteClassifier(lite, workers).probabilities(inputs)
    np.testing.assert_allclose(got, expected(model, inputs), atol=1e-5)


def test_tflite_from_a_file(lite, inputs, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(lite)
    np.testing.assert_array_equal(
        as_classifier(path).probabilities(inputs), as_classifier(lite).probabilities(inputs)
    )


class Wrapper:
    """An object with `predict` and `model`, as an instrumented model has them."""

    def __init__(self, model):
        self.model = model

    def predict(self, x):
        return self.model.predict(x, verbose=0)


class Predictor:
    """An object with `predict` only."""

    def predict(self, x):
        return np.full((len(x), 2), 0.5)


def test_what_is_accepted(model, inputs):
    assert isinstance(as_classifier(Wrapper(model)), KerasClassifier)
    assert as_classifier(Predictor()).probabilities(inputs).shape == (11, 2)
    assert as_classifier(lambda x: x[:, :2, 0, 0]).probabilities(inputs).shape == (11, 2)
    classifier = as_classifier(model)
    assert as_classifier(classifier) is classifier


def test_what_is_refused(model, lite, inputs, tmp_path):
    with pytest.raises(InvalidArgumentError, match="int"):
        as_classifier(3)
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        as_classifier(tmp_path / "nowhere.tflite")
    with pytest.raises(InvalidArgumentError, match="batch_size"):
        as_classifier(model, batch_size=0)
    with pytest.raises(InputShapeError, match=r"\(6, 6, 2\)"):
        as_classifier(lite).probabilities(inputs[:, :5])


@pytest.mark.parametrize("damage", ["half", "head", "other", "empty"])
def test_corrupt_tflite(lite, damage):
    content = {"half": lite[: len(lite) // 2], "head": lite[:64], "other": b"x" * 99, "empty": b""}
    with pytest.raises(CorruptFileError, match="TFLite"):
        as_classifier(content[damage])
