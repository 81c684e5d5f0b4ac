"""When a model is wrapped, it is compared with the original on inputs of every kind."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.errors import InputRangeError
from nnslicer_tf.instrument.comparison import difference


def model_of(function, shape=(6,), dtype=None):
    keras.utils.set_random_seed(0)
    x = keras.Input(shape, dtype=dtype)
    return keras.Model(x, function(x))


ROW = np.arange(6, dtype=np.float32) - 2

WITH_CONSTANTS = {
    "maximum": lambda x: layers.Dense(3)(ops.maximum(x, 0.0)),
    "maximum, first": lambda x: layers.Dense(3)(ops.maximum(0.0, x)),
    "minimum": lambda x: layers.Dense(3)(ops.minimum(layers.Dense(8, "relu")(x), 6.0)),
    "array": lambda x: layers.Dense(3)(ops.maximum(x, ROW)),
    "in a list": lambda x: layers.Dense(3)(layers.Maximum()([x, ROW[None]])),
    "added in a list": lambda x: layers.Dense(3)(layers.Add()([x, x, ROW[None]])),
    "averaged in a list": lambda x: layers.Dense(3)(layers.Average()([x, 2 * x, ROW[None]])),
    "minimum of two and one": lambda x: layers.Dense(3)(layers.Minimum()([x, -x, ROW[None]])),
    "subtracted from": lambda x: layers.Dense(3)(ops.subtract(ROW, x)),
    "divided": lambda x: layers.Dense(3)(x / (ROW + 5)),
}


@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_constants_are_part_of_the_model(name):
    model = model_of(WITH_CONSTANTS[name])
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(1).normal(scale=30, size=(50, 6)).astype(np.float32)
    np.testing.assert_allclose(im.predict(x), model(x).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_exact_lines_of_hand_made_rectifiers(name):
    model = model_of(WITH_CONSTANTS[name])
    im = nns.InstrumentedModel(model)
    line = nns.exactline.exact_line(im, np.full(6, -40.0), np.full(6, 40.0))
    points = line.at(line.ratios)
    middles = (points[1:] + points[:-1]) / 2
    expected = model(middles.astype(np.float32)).numpy()
    np.testing.assert_allclose((line.outputs[1:] + line.outputs[:-1]) / 2, expected, atol=1e-3)


OF_DTYPE = {
    "uint8": lambda x: layers.Dense(2)(layers.Rescaling(1 / 255)(x)),
    "int8": lambda x: layers.Dense(2)(ops.cast(x, "float32")),
    "int32": lambda x: layers.Dense(2)(x / 10),
    "int64": lambda x: layers.Dense(2)(
        layers.Normalization(mean=np.arange(4.0), variance=[1.0, 4.0, 9.0, 16.0])(x)
    ),
    "bool": lambda x: layers.Dense(2)(ops.cast(x, "float32")),
    "float16": lambda x: layers.Dense(2)(x),
    "float64": lambda x: layers.Dense(2, dtype="float64")(x),
}


@pytest.mark.parametrize("dtype", OF_DTYPE)
def test_inputs_of_each_dtype(dtype):
    model = model_of(OF_DTYPE[dtype], (4,), dtype)
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (20, 4)).astype(dtype)
    im = nns.InstrumentedModel(model)
    tolerance = 0.1 if dtype == "float16" else 1e-4
    np.testing.assert_allclose(im.predict(x), model(x).numpy(), atol=tolerance)
    if "float" not in dtype:
        with pytest.raises(InputRangeError, match=r"has the value 0\.5"):
            im.predict(np.full((2, 4), 0.5))


def test_bounds_of_bytes_are_known():
    im = nns.InstrumentedModel(model_of(OF_DTYPE["uint8"], (4,), "uint8"))
    assert im.bounds == (0, 255)
    with pytest.raises(InputRangeError, match="256"):
        im.predict(np.full((2, 4), 256))
    assert nns.InstrumentedModel(model_of(OF_DTYPE["int64"], (4,), "int64")).bounds is None


def test_images_of_bytes():
    model = model_of(
        lambda x: layers.Flatten()(layers.Conv2D(2, 3)(layers.Rescaling(1 / 255)(x))),
        (8, 8, 3),
        "uint8",
    )
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
    np.testing.assert_allclose(nns.InstrumentedModel(model).predict(x), model(x).numpy(), atol=1e-5)


class Doubled(layers.Layer):
    """Computes 2x; what is registered for it differs where x is large or negative."""

    def call(self, x):
        return x * 2


@pytest.mark.parametrize(
    "wrong", [lambda x: ops.where(x > 20, x, 2 * x), lambda x: ops.where(x < -20, x, 2 * x)]
)
def test_the_first_layer_that_differs_is_named(wrong):
    step, elementwise = nns.instrument.Step, nns.instrument.Elementwise
    nns.register_layer(Doubled, lambda layer, call: [step("elementwise", wrong, elementwise("d"))])
    model = model_of(lambda x: layers.Dense(2)(Doubled(name="mine")(layers.Dense(40)(x))))
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match=r"Layer 'mine' \(Doubled\).*differs by"
    ):
        nns.InstrumentedModel(model)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: ops.cast(x * 2, "float32"), "multiply"),
        (lambda x: ops.cast(ops.cast(x, "float32") / 7, "int32") / 2, "cast"),
    ],
)
def test_arithmetic_of_integers_is_named(function, name):
    model = model_of(lambda x: layers.Dense(2)(function(x)), (4,), "uint8")
    with pytest.raises(nns.errors.UnsupportedLayerError, match=f"'{name}.*cast to float32"):
        nns.InstrumentedModel(model)


TRAINING = {
    "dropout": lambda x: layers.Dropout(0.5, name="own")(x, training=True),
    "noise": lambda x: layers.GaussianNoise(0.5, name="own")(x, training=True),
    "batch": lambda x: layers.BatchNormalization(name="own")(x, training=True),
    "nested": lambda x: keras.Sequential(
        [keras.Input((6,)), layers.Dense(6), layers.Dropout(0.3)], name="own"
    )(x, training=True),
    "recurrent": lambda x: layers.LSTM(2, dropout=0.5, name="own")(
        layers.Reshape((3, 2))(x), training=True
    ),
}


@pytest.mark.parametrize("name", TRAINING)
def test_training_mode_at_inference_is_named_and_changes_nothing(name):
    model = model_of(lambda x: layers.Dense(2)(TRAINING[name](x)))
    weights = model.get_weights()
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'own['/].*training=True"):
        nns.InstrumentedModel(model)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_training_mode_without_effect_is_accepted():
    model = model_of(lambda x: layers.Dense(2)(layers.Dropout(0.0)(x, training=True)))
    nns.InstrumentedModel(model)


class Counting(keras.Model):
    """Computes something else at each call."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
        self.calls = 0

    def call(self, x):
        self.calls += 1
        return self.dense(x) * float(self.calls)


def test_a_call_that_is_not_its_layers_is_named():
    model = Counting()
    model(np.zeros((1, 6), np.float32))
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match=r"\(Counting\) differ from those of its"
    ):
        nns.InstrumentedModel(model)


def test_a_sum_that_is_nearly_zero_is_no_difference():
    """Of one value for each sample, rounding is measured by what is usual, not by that sample's."""
    theirs = np.array([[1.0], [2e-5], [-1.5], [0.8]])
    assert difference(theirs, theirs + 1.5e-8, 1e-5) < 1
    assert difference(theirs[1:2], theirs[1:2] + 1.5e-8, 1e-5) > 1
    assert difference(theirs, theirs + np.array([[0], [1e-4], [0], [0]]), 1e-5) > 1
    assert difference(theirs, theirs * [[1.001], [1], [1], [1]], 1e-5) > 1
