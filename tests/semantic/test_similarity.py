"""Similarity of landscapes, and of every prefix, against the definition."""

import numpy as np
import pytest

from nnslicer_tf.semantic.slicer import prefix_similarities


def by_definition(features, order):
    """Equations 1, 2 and 4, a prefix at a time, every entry of M on its own."""

    def matrix(units):
        rows = [f[..., units].ravel() for f in features]
        return np.array([[np.dot(a, b) for b in rows] for a in rows])

    whole = matrix(order)
    found = []
    for k in range(1, len(order) + 1):
        part = matrix(order[:k])
        found.append((part * whole).sum() / np.sqrt((part**2).sum() * (whole**2).sum()))
    return found


# Of few samples of many values their landscape is summed up; of others, the values are.
SHAPES = [(5, 7), (12, 4), (40, 2, 2, 3), (6, 3, 3, 5), (2, 30)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_prefix(shape):
    rng = np.random.default_rng(0)
    features = rng.normal(size=shape).astype(np.float32)
    order = rng.permutation(shape[-1])
    expected = by_definition(features.astype(float), order)
    np.testing.assert_allclose(prefix_similarities(features, order), expected, rtol=1e-9)


def test_the_whole_layer_is_similar_to_itself():
    features = np.random.default_rng(1).random((30, 4, 6), np.float32)
    assert prefix_similarities(features, np.arange(6))[-1] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("shape", [(30, 3), (3, 8, 8, 3)])
def test_dead_neurons(shape):
    features = np.random.default_rng(1).random(shape)
    features[..., 0] = 0
    found = prefix_similarities(features, np.arange(3))
    assert found[0] == 0
    assert 0 < found[1] < found[2]
    np.testing.assert_array_equal(prefix_similarities(0 * features, np.arange(3)), 1)
