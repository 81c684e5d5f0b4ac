"""A model whose answer to a sample depends on the others of its batch is refused."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import Ablation, Mean
from nnslicer_tf.instrument.ablated_models import with_constants


class TrainingNorm(layers.Layer):
    """Normalizes by the batch, as batch normalization does in training."""

    def call(self, x):
        return (x - ops.mean(x, axis=0, keepdims=True)) / (1 + ops.std(x, axis=0, keepdims=True))


class Sized(layers.Layer):
    """Knows how many samples there are."""

    def call(self, x):
        return x + ops.cast(ops.shape(x)[0], "float32") * 0.1


MIXING = {
    "softmax": layers.Softmax(axis=0),
    "unit": layers.UnitNormalization(axis=0),
    "own": TrainingNorm(),
    "size": Sized(),
    "flip": lambda x: ops.flip(x, axis=0),
    "roll": lambda x: ops.roll(x, 1, axis=0),
    "cumsum": lambda x: ops.cumsum(x, axis=0),
    "softmax of ops": lambda x: ops.softmax(x, axis=0),
    "sort": lambda x: ops.sort(x, axis=0),
    "condition": lambda x: ops.cond(ops.sum(x) > 0, lambda: x, lambda: -2 * x),
    "where": lambda x: ops.where(ops.any(x > 2), x, 3 * x),
    "all": lambda x: x * ops.cast(ops.all(x > -1), "float32"),
    "largest": lambda x: x * ops.cast(ops.max(ops.cast(x > 2, "int32")), "float32"),
}


@pytest.mark.filterwarnings("ignore:Exception encountered when calling Softmax")
@pytest.mark.filterwarnings("ignore:You are using a softmax over axis 0")
@pytest.mark.parametrize("layer", MIXING.values(), ids=MIXING)
def test_samples_that_change_each_other_are_noticed(layer):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    mixed = (layer if isinstance(layer, layers.Layer) else layers.Lambda(layer))(inputs)
    model = keras.Model(inputs, layers.Dense(2)(mixed))
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    alone = np.concatenate([model(x[i : i + 1]) for i in range(len(x))])
    assert np.abs(model(x) - alone).max() > 1e-3
    with pytest.raises(UnsupportedLayerError):
        nns.InstrumentedModel(model)


def test_the_error_names_the_operation():
    inputs = keras.Input((4,))
    mixed = layers.Softmax(axis=0, name="over_samples")(layers.Dense(3)(inputs))
    with pytest.raises(UnsupportedLayerError, match=r"mixes samples: .* 'over_samples' on"):
        nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2)(mixed)))


def test_batch_normalization_that_is_told_to_train_is_refused():
    inputs = keras.Input((4,))
    normed = layers.BatchNormalization()(layers.Dense(3)(inputs), training=True)
    with pytest.raises(UnsupportedLayerError):
        nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2)(normed)))


@pytest.mark.parametrize(
    "shape, first",
    [((224, 224, 3), layers.GlobalAveragePooling2D()), ((200, 3), layers.LSTM(4))],
    ids=["large images", "long loops"],
)
def test_samples_that_are_compared_one_by_one_have_company_too(shape, first):
    inputs = keras.Input(shape)
    mixed = layers.UnitNormalization(axis=0)(layers.Dense(3)(first(inputs)))
    with pytest.raises(UnsupportedLayerError, match="mixes samples"):
        nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2)(mixed)))


@pytest.mark.parametrize(
    "layer", [layers.MultiHeadAttention(1, 4), layers.LSTM(4, return_sequences=True)]
)
def test_a_batch_that_becomes_a_sequence_is_refused(layer):
    inputs = keras.Input((5,))
    moved = ops.expand_dims(inputs, 0)
    mixed = layer(moved, moved) if isinstance(layer, layers.MultiHeadAttention) else layer(moved)
    with pytest.raises(UnsupportedLayerError, match="the batch axis must come first"):
        nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2)(ops.squeeze(mixed, 0))))


JOINS = {
    "layer": lambda u, v: layers.Add()([u, v]),
    "operator": lambda u, v: u + v,
    "function": ops.add,
    "average": lambda u, v: layers.Average()([u, v]),
}


@pytest.mark.parametrize("channels", [2, 3, 4, 32])
@pytest.mark.parametrize("join", JOINS)
def test_as_many_samples_as_channels_are_added_along_the_channels(join, channels):
    """Keras itself takes `(samples, 1)` for a bias, and adds it along the other axis."""
    keras.utils.set_random_seed(channels)
    inputs = keras.Input((2,))
    parts = layers.Dense(channels)(inputs), layers.Dense(1)(inputs)
    model = keras.Model(inputs, layers.Dense(3)(JOINS[join](*parts)))
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    u, c, v, d, w, e = (np.float64(array) for array in model.get_weights())
    factor = 0.5 if join == "average" else 1
    expected = (factor * (x @ u + c + x @ v + d)) @ w + e
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(x[:channels]), expected[:channels], atol=1e-5)
    profile = nns.Profile.from_data(im, x, progress=False)
    # The copy with constants is compared on a few samples.
    keep = {name: np.arange(k.size).reshape(k.shape) % 3 > 0 for name, k in im.kernels.items()}
    masked = with_constants(im, keep, profile.means)
    few = Ablation(im, Mean(profile)).outputs(keep, x[:5])
    np.testing.assert_allclose(masked(x[:5]), few, atol=1e-5)
