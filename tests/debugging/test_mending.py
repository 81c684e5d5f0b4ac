"""Mending: only the suspicious channels change, and it helps."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.debugging import Runs, mend, suspicious
from nnslicer_tf.debugging.localisation import suspicious_synapses
from nnslicer_tf.dflare import with_softmax
from nnslicer_tf.errors import InvalidArgumentError
from support.known_models import negated


@pytest.fixture(scope="module")
def broken(digits_model, digits):
    im = negated(digits_model, "conv1", 0)
    runs = Runs.split(im, digits.x, digits.y).sampled(20)
    pair = [(part.x, part.right) for part in (runs.failing, runs.passing)]
    found = suspicious(im, *pair, progress=False)
    x, y = (np.concatenate(parts) for parts in zip(*pair, strict=True))
    return im, found, x, y


def accuracy(model, data):
    return np.mean(model(data.x).numpy().argmax(axis=1) == data.y)


@pytest.mark.parametrize("how", ["mask", "scale", "train"])
def test_one_channel_changes_and_the_model_gets_better(broken, digits, how):
    im, found, x, y = broken
    masks = suspicious_synapses(im, found)
    ((kernel, mask),) = masks.items()
    assert mask.sum() == np.prod(mask.shape[:-1])
    model = mend(im, found, x, y, how, epochs=20, learning_rate=1e-2)
    for name, own in nns.InstrumentedModel(model).kernels.items():
        changed = own.kernel() != im.kernels[name].kernel()
        assert not changed[~mask].any() if name == kernel else not changed.any()
    others = [w for w in im.model.weights if not w.path.endswith("kernel")]
    mended = [w for w in model.weights if not w.path.endswith("kernel")]
    for old, new in zip(others, mended, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (old, new)))
    assert accuracy(model, digits) > accuracy(im.model, digits) + 0.01


def test_masked_synapses_are_zero(broken):
    im, found, x, y = broken
    masks = suspicious_synapses(im, found, channels=2)
    kernels = nns.InstrumentedModel(mend(im, found, x, y, "mask", channels=2)).kernels
    for name, mask in masks.items():
        assert not kernels[name].kernel()[mask].any()
    assert sum(mask.any(axis=(0, 1, 2)).sum() for mask in masks.values()) == 2


@pytest.mark.parametrize("how", ["scale", "train"])
def test_probabilities_are_mended_as_their_logits(broken, how):
    """With the loss of the logits before the softmax, the weights become the same."""
    im, found, x, y = broken
    head = nns.InstrumentedModel(with_softmax(im.model))
    options = {"how": how, "epochs": 3, "learning_rate": 1e-2}
    expected = mend(im, found, x, y, **options).get_weights()
    for weights, own in zip(
        mend(head, found, x, y, **options).get_weights(), expected, strict=True
    ):
        np.testing.assert_allclose(weights, own, atol=1e-4)


def test_training_with_dropout_is_determined_by_its_seed(digits):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Dense(16, activation="relu", name="hidden")(keras.layers.Flatten()(inputs))
    x = keras.layers.Dense(10, name="logits")(keras.layers.Dropout(0.5)(x))
    im = nns.InstrumentedModel(keras.Model(inputs, x))
    runs = Runs.split(im, digits.x, digits.y).sampled(10)
    pair = [(part.x, part.right) for part in (runs.failing, runs.passing)]
    found = suspicious(im, *pair, progress=False)
    x, y = (np.concatenate(parts) for parts in zip(*pair, strict=True))
    first, again = (mend(im, found, x, y, epochs=2, rng=5).get_weights() for _ in range(2))
    np.testing.assert_array_equal(first[0], again[0])


def test_bad_arguments(broken):
    im, found, x, y = broken
    with pytest.raises(InvalidArgumentError, match="way of mending"):
        mend(im, found, x, y, "pray")
    with pytest.raises(InvalidArgumentError, match="channels must be a positive int"):
        mend(im, found, x, y, channels=0)
    with pytest.raises(InvalidArgumentError, match="one class index for each"):
        mend(im, found, x, y[:3])
