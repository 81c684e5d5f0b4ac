"""Similarities of consecutive layers, by which DeepArc finds the redundant ones."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.neusemslice.landscapes import landscape, similarity
from reproduction.neusemslice.trial import layer_similarities
from support.classifiers import make, randomise, samples


def test_similarities_are_of_consecutive_layers():
    im = nns.InstrumentedModel(make("convolutional"))
    x, _ = samples(im.model, 10)
    found = layer_similarities(im, x)
    values = im.capture(x, of=["c1", *im.output_operations])
    assert list(found) == ["c2", "d", "probabilities"]
    first = im.capture(x, of=["d"])["d"]
    logits = im.logits(x)
    expected = similarity(landscape(logits), landscape(first))
    assert found["probabilities"] == pytest.approx(expected)
    assert values["c1"].shape[0] == 10
    assert all(0 <= value <= 1 + 1e-9 for value in found.values())


def test_padding_counts_in_no_similarity():
    """Two layers on sequences, of which the second gives at padding what the first does not."""
    inputs = keras.Input((6,))
    x = layers.Embedding(9, 4, mask_zero=True)(inputs)
    for name in ("first", "second"):
        x = layers.Dense(5, activation="relu", name=name)(x)
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(3, name="logits")(x))
    im = nns.InstrumentedModel(randomise(model, np.random.default_rng(1)))
    tokens = np.random.default_rng(0).integers(1, 9, (8, 6)).astype(np.float32)
    tokens[np.arange(6) >= np.arange(8)[:, None] % 5 + 1] = 0
    first, second = (im.capture(tokens, of=[name])[name] for name in ("first", "second"))
    data = tokens[..., None] > 0
    expected = similarity(landscape(first * data), landscape(second * data))
    found = layer_similarities(im, tokens)
    assert found["second"] == pytest.approx(expected, abs=1e-6)
    assert abs(similarity(landscape(first), landscape(second)) - expected) > 0.01


def centre(f):
    return f - f.mean(axis=0)


def test_similarity_is_scale_free_and_not_centred():
    rng = np.random.default_rng(2)
    f = rng.normal(size=(9, 4))
    assert similarity(landscape(f), landscape(3 * f)) == pytest.approx(1)
    assert similarity(landscape(f), landscape(f + 5)) < 0.9
    assert similarity(landscape(centre(f)), landscape(centre(f + 5))) == pytest.approx(1)


def test_centred_landscapes_give_the_centred_kernel_alignment():
    """Kornblith et al. (2019): tr(KHLH) / √(tr(KHKH) tr(LHLH))."""
    rng = np.random.default_rng(3)
    f, g = rng.normal(size=(9, 4)) + 1, rng.normal(size=(9, 2, 3))
    h = np.eye(9) - 1 / 9
    k, m = landscape(f), landscape(g)

    def product(a, b):
        return np.trace(a @ h @ b @ h)

    expected = product(k, m) / np.sqrt(product(k, k) * product(m, m))
    assert similarity(landscape(centre(f)), landscape(centre(g))) == pytest.approx(expected)


def test_landscapes_of_other_samples_are_refused():
    with pytest.raises(InvalidArgumentError, match="same samples"):
        similarity(np.eye(2), np.eye(3))
