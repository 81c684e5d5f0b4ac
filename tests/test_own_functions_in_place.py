"""Functions of users that work in place: they get copies, so data and other results stay right."""

import keras
import numpy as np
import pytest
from keras import layers

from nnslicer_tf import deepbase, deepxplore, dflare


@pytest.fixture
def versions():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(3, "softmax")]
    )
    other = keras.models.clone_model(model)
    rng = np.random.default_rng(0)
    other.set_weights([w + 0.3 * rng.normal(size=w.shape) for w in model.get_weights()])
    return model, other


def pure(x):
    return (x - np.float32(50)) / 10


def in_place(x):
    x -= 50
    x /= 10
    return x


@pytest.mark.parametrize("columns", [4, 1200])  # a table's rows, and signals
def test_preprocessing(columns, versions):
    x = np.random.default_rng(1).normal(50, 10, (30, columns)).astype(np.float32)
    given = x.copy()
    pairs = [
        dflare.ModelPair(*versions, lambda x, function=function: function(x)[:, :4])
        for function in (pure, in_place)
    ]
    differs = [dflare.agreement(pair, given).differs for pair in pairs for _ in range(2)]
    assert (np.array(differs) == differs[0]).all() and differs[0].any()
    found = [dflare.find_deviations(p, given[:10], rng=0, progress=False) for p in pairs]
    np.testing.assert_array_equal(found[0].images, found[1].images)
    np.testing.assert_array_equal(dflare.verify(pairs[1], found[0]), True)
    np.testing.assert_array_equal(given, x)


def test_models(versions):
    """Both models get the same inputs, whatever the first does with them."""
    model, other = versions

    def first(x):
        x /= 10
        return np.asarray(model(x))

    x = np.random.default_rng(1).normal(50, 10, (30, 4)).astype(np.float32)
    found = dflare.agreement(dflare.ModelPair(first, lambda x: np.asarray(other(x))), x)
    expected = np.argmax(model(x / 10), 1) != np.argmax(other(x), 1)
    np.testing.assert_array_equal(found.differs, expected)


def test_hypotheses(versions):
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)

    def size(x):
        np.abs(x, out=x)
        return x.sum(axis=1)

    options = {"units": versions[0].layers[0].name, "block_size": 64, "progress": False}
    kinds = [{"size": size, "first": lambda x: x[:, 0]}]
    kinds += [{"size": lambda x: np.abs(x).sum(axis=1), "first": lambda x: x[:, 0]}]
    given = x.copy()
    found = [deepbase.inspect(versions[0], given, kind, **options) for kind in kinds]
    np.testing.assert_array_equal(found[0].score, found[1].score)
    np.testing.assert_array_equal(given, x)


def test_constraints(versions):
    seeds = np.random.default_rng(0).random((3, 4), np.float32)

    def bounded(x, seeds):
        seeds += 1  # no one else's
        return np.clip(x, 0, 1, out=x)

    given = seeds.copy()
    found = [
        deepxplore.generate([*versions], given, constraint=c, max_iterations=5, progress=False)
        for c in (bounded, lambda x, seeds: np.clip(x, 0, 1))
    ]
    assert len(found[0])
    np.testing.assert_array_equal(found[0].inputs, found[1].inputs)
    np.testing.assert_array_equal(given, seeds)
