"""What cannot be instrumented is refused by name, for the right reason, with a remedy."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns

tf = pytest.importorskip("tensorflow")


class OfTensorFlow(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return tf.nn.relu(self.dense(x))


class WithCondition(OfTensorFlow):
    def call(self, x):
        return self.dense(x) if ops.sum(x) >= 0 else self.dense(-x)


class WithTwoOfOneName(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(3, name="d"), layers.Dense(3, name="d")

    def call(self, x):
        return self.second(self.first(x))


def called(model_class):
    model = model_class()
    model(np.zeros((1, 6), np.float32))
    return model


def sequential(*parts, **options):
    return keras.Sequential([keras.Input((6,), **options), *parts])


def of_text():
    vectors = layers.TextVectorization(10, output_sequence_length=4)
    vectors.adapt(["a b", "c d"])
    x = keras.Input((), dtype="string", name="words")
    return keras.Model(x, layers.Embedding(10, 2)(vectors(x)))


def of_categories():
    x = keras.Input((1,), dtype="int32")
    return keras.Model(x, layers.Dense(2)(layers.CategoryEncoding(4, name="own")(x)))


def with_adapter():
    model = sequential(layers.Dense(3, name="own"))
    model.get_layer("own").enable_lora(2)
    return model


REFUSED = {
    "TensorFlow": (lambda: called(OfTensorFlow), r"\(OfTensorFlow\).*keras.ops"),
    "two of a name": (lambda: called(WithTwoOfOneName), '"d".*different name'),
    "a:pre": (
        lambda: sequential(layers.Dense(3, "relu", name="a"), layers.Dense(2, name="a:pre")),
        "'a' and 'a:pre'.*Rename",
    ),
    "text": (of_text, "'words'.*takes text.*after the one"),
    "categories": (of_categories, r"'own' \(CategoryEncoding\).*layers after it"),
    "spectral": (
        lambda: sequential(layers.SpectralNormalization(layers.Dense(3), name="own")),
        r"'own' \(SpectralNormalization\).*without it",
    ),
    "adapter": (with_adapter, r"'own' \(Dense\).*LoRA.*load_weights"),
    "sparse": (lambda: sequential(layers.Dense(2), sparse=True), "sparse tensors.*toarray"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_instrumented_is_refused_by_name(name):
    build, message = REFUSED[name]
    with pytest.raises(nns.errors.UnsupportedLayerError, match=message):
        nns.InstrumentedModel(build())


def test_a_condition_on_values_is_refused():
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match=r"\(WithCondition\).*Python condition"
    ):
        nns.InstrumentedModel(WithCondition(), input_shape=(6,))


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method")
def test_a_quantised_model_is_refused():
    model = sequential(layers.Dense(3, name="own"))
    model.quantize("int8")
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match=r"'own' \(Dense\) is quantised to int8"
    ):
        nns.InstrumentedModel(model)


def test_the_remedy_for_an_adapter_works(tmp_path):
    model = with_adapter()
    for weight in model.get_layer("own").trainable_variables:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    model.save_weights(tmp_path / "merged.weights.h5")
    plain = sequential(layers.Dense(3, name="own"))
    plain.load_weights(tmp_path / "merged.weights.h5")
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    expected = model(x).numpy()
    np.testing.assert_allclose(nns.InstrumentedModel(plain).predict(x), expected, atol=1e-5)


def test_the_inner_layer_is_named():
    inner = keras.Sequential(
        [keras.Input((6,)), layers.Dense(6), layers.Dropout(0.5, name="noise")], name="outer"
    )
    inputs = keras.Input((6,))
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'outer/noise' \(Dropout\)"):
        nns.InstrumentedModel(keras.Model(inputs, inner(inputs, training=True)))
