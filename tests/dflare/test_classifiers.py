import warnings
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

from nnslicer_tf.dflare import (
    ModelPair,
    TableDomain,
    agreement,
    as_classifier,
    classifiers,
    compress,
)
from nnslicer_tf.dflare.classifiers import KerasClassifier, TFLiteClassifier
from nnslicer_tf.errors import (
    CorruptFileError,
    InputShapeError,
    InvalidArgumentError,
    SeveralInputsError,
)
from support.deviating import find, mutated


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


def test_one_input_and_one_output(lite):

    a, b = keras.Input((3,)), keras.Input((3,))
    both = keras.layers.Add()([a, b])
    with pytest.raises(SeveralInputsError, match="has 2 inputs"):
        as_classifier(keras.Model([a, b], keras.layers.Softmax()(both)))
    outputs = [keras.layers.Dense(2)(a), keras.layers.Dense(3)(a)]
    with pytest.raises(InvalidArgumentError, match="has 2 outputs"):
        as_classifier(keras.Model(a, outputs))


def test_a_file_for_batches_takes_one_input_at_a_time():
    import tensorflow as tf

    four = keras.Input((3,), batch_size=4)
    content = tf.lite.TFLiteConverter.from_keras_model(
        keras.Model(four, keras.layers.Softmax()(four))
    ).convert()
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    powers = np.exp(x.astype(np.float64))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(as_classifier(content).probabilities(x), expected, atol=1e-6)


def integer_inside(model, samples):
    """TFLite's default 8-bit mode: integers inside, floats at the input and the output."""
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([sample[None]] for sample in samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return converter.convert()


@pytest.mark.parametrize("classes", [1, 2, 10])
def test_integers_between_floats_are_probabilities(classes):
    keras.utils.set_random_seed(classes)
    final = "sigmoid" if classes == 1 else "softmax"
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(classes, activation=final, kernel_initializer="random_normal"),
        ]
    )
    x = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    content = integer_inside(model, x[:50])
    classifier = as_classifier(content)
    assert classifier.resolution == pytest.approx(1 / 256)
    outputs = classifier.probabilities(x)
    np.testing.assert_allclose(outputs * 256, np.rint(outputs * 256), atol=1e-3)
    answers = ModelPair(model, content).ask(x)
    assert answers.compressed.shape == (300, max(2, classes))
    own = ModelPair(model, lambda x: classifier.probabilities(x)).ask(x)  # with a runner of ours
    np.testing.assert_array_equal(own.labels, answers.labels)
    labels = outputs[:, 0] > 0.5 if classes == 1 else outputs.argmax(axis=1)
    np.testing.assert_array_equal(answers.labels[:, 1], labels)


@pytest.mark.parametrize("integers", [False, True])
def test_free_axes_take_the_shape_of_the_inputs(integers):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, None, 3))
    y = keras.layers.Conv2D(4, 5, activation="relu")(inputs)
    y = keras.layers.GlobalAveragePooling2D()(y)
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(y))
    x = np.random.default_rng(0).normal(size=(4, 12, 10, 3)).astype(np.float32)
    file = integer_inside(model, x) if integers else compress(model, "dynamic")
    classifier = TFLiteClassifier(file, 2)
    for part in (x, x[:, :8, :7]):  # also a second shape
        expected = np.asarray(model(part))
        tolerance = 0.05 if integers else 0.02
        np.testing.assert_allclose(classifier.probabilities(part), expected, atol=tolerance)
    with pytest.raises(InputShapeError, match=r"\(None, None, 3\). Received: \(12, 10, 1\)"):
        classifier.probabilities(x[..., :1])
    with pytest.raises(InputShapeError, match=r"cannot compute with inputs of shape \(2, 2, 3\)"):
        classifier.probabilities(x[:, :2, :2])
    np.testing.assert_allclose(classifier.probabilities(x), np.asarray(model(x)), atol=tolerance)


def test_large_inputs_come_in_small_batches(monkeypatch):
    """An activation of a batch, and the inputs of a round, take 4,000 bytes at most."""
    monkeypatch.setattr(classifiers, "MAX_BATCH_BYTES", 4000)
    keras.utils.set_random_seed(2)
    inputs = keras.Input((None, None, 1))
    y = keras.layers.Conv2D(5, 3, padding="same", activation="relu")(inputs)
    y = keras.layers.GlobalAveragePooling2D()(y)
    model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(y))
    classifier = KerasClassifier(model, 32)
    assert classifier.batch_size((10, 10, 1)) == 2  # 500 values each
    assert classifier.batch_size((2, 2, 1)) == 32 and classifier.batch_size((99, 99, 1)) == 1
    x = np.random.default_rng(0).integers(0, 256, (20, 10, 10, 1), dtype=np.uint8)
    expected = np.asarray(model(x.astype(np.float32)))
    np.testing.assert_allclose(classifier.probabilities(x), expected, atol=1e-6)
    asked = []

    def original(x):
        asked.append(len(x))
        return np.asarray(model(x))

    other = mutated(model, 1.0)
    find(original, other, x, lambda x: x / np.float32(255), max_queries=3)
    assert max(asked) == 10  # 100 values each; as many as that are asked about at first


def test_one_output_is_a_probability():
    x = np.linspace(0.01, 0.99, 7)[:, None]
    pair = ModelPair(lambda x: x, lambda x: 1 - x[:, 0])
    answers = pair.ask(x)
    np.testing.assert_allclose(answers.original, np.concatenate([1 - x, x], axis=1), atol=1e-7)
    assert answers.labels.tolist() == [[0, 1]] * 3 + [[0, 0]] + [[1, 0]] * 3
    assert answers.deviates.tolist() == [True] * 3 + [False] + [True] * 3
    for wrong in (lambda x: 5 * x, lambda x: x - 0.5):
        with pytest.raises(InvalidArgumentError, match=r"probability of class 1.*sigmoid"):
            ModelPair(lambda x: x, wrong).ask(x)


def test_keras_models_name_their_shape(model, inputs):
    with pytest.raises(InputShapeError, match=r"\(6, 6, 2\). Received: \(5, 6, 2\)"):
        as_classifier(model).probabilities(inputs[:, 1:])


def test_preprocessing_that_drops_inputs_is_refused(model, inputs):
    pair = ModelPair(model, model, preprocess=lambda x: x[:1])
    with pytest.raises(InvalidArgumentError, match=r"must return 3 inputs. Received: \(1, "):
        agreement(pair, inputs[:3])


def test_keras_files(model, inputs, tmp_path):
    model.save(tmp_path / "model.keras")
    got = as_classifier(tmp_path / "model.keras").probabilities(inputs)
    np.testing.assert_allclose(got, expected(model, inputs), atol=1e-6)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_answers_of_16_bits(precision):
    """Ten classes whose sums are 1 up to the rounding of 16 bits are probabilities."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(10, activation="softmax", dtype=precision)]
    )
    classifier = as_classifier(model)
    outputs = classifier.probabilities(x)
    assert outputs.dtype == np.float32
    kernel, bias = (w.astype(np.float64) for w in model.get_weights())
    expected = np.exp(x @ kernel + bias)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs, expected, atol=4 * classifier.resolution)
    pair = ModelPair(model, model, domain=TableDomain(x))
    assert not pair.ask(x).deviates.any()  # the domain takes them as probabilities
    with pytest.raises(InvalidArgumentError, match="`original` returns values that are not"):
        ModelPair(lambda _: 1.2 * outputs, model, domain=TableDomain(x)).ask(x)


@pytest.mark.parametrize("damage", ["half", "head", "other", "empty"])
def test_corrupt_tflite(lite, damage):
    content = {"half": lite[: len(lite) // 2], "head": lite[:64], "other": b"x" * 99, "empty": b""}
    with pytest.raises(CorruptFileError, match="TFLite"):
        as_classifier(content[damage])


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_share_a_file(model, lite, workers):
    """An interpreter has one set of tensors: threads that share it take turns."""
    classifier = TFLiteClassifier(lite, workers=workers)
    batches = np.random.default_rng(1).normal(size=(24, 20, 6, 6, 2)).astype(np.float32)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(classifier.probabilities, batches))
    for batch, got in zip(batches, found, strict=True):
        np.testing.assert_allclose(got, expected(model, batch), atol=1e-5)
