"""Exact lines through operations that treat each position in its own way."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.exactline.rules.routing import side_by_side

from .lines import check_partition, float64_model
from .test_curves import at, random_curve


def joined_rows():
    """Of two sequences, the second after the first, and a third before them."""
    x = keras.Input((4, 2))
    one, two = (layers.Conv1D(3, 2, activation="relu")(x) for _ in range(2))
    h = layers.Concatenate(axis=1)([layers.Dense(3)(x), one, two])
    h = layers.Conv1D(2, 3, activation="relu")(h)
    return keras.Model(x, layers.Dense(2)(layers.Flatten()(h)))


def scaled_by_position():
    """Another factor and offset for every value of a map."""
    x = keras.Input((3, 2))
    rng = np.random.default_rng(0)
    h = layers.Conv1D(4, 1)(x)
    h = layers.Normalization(
        axis=(1, 2), mean=rng.normal(size=(3, 4)), variance=1 + rng.random((3, 4))
    )(h)
    h = ops.relu(h) * rng.normal(size=(3, 1)) + rng.normal(size=(1, 4))
    return keras.Model(x, layers.Dense(2)(layers.Flatten()(h)))


@pytest.mark.parametrize("build", [joined_rows, scaled_by_position])
def test_lines_are_those_of_the_network(build):
    model = float64_model(build)
    ends = np.random.default_rng(1).normal(size=(2, *model.input_shape[1:]))
    partition = nns.exactline.exact_line(nns.InstrumentedModel(model), *ends)
    assert len(partition.ratios) > 2
    check_partition(partition, model)


def test_curves_side_by_side():
    curves = random_curve(3, 2, 2, 0), random_curve(1, 2, 5, 1)
    joined = side_by_side(*curves)
    assert (joined.lines, joined.positions, joined.channels) == (2, 1, 11)
    places = np.linspace(0, 1, 41)
    for line in range(2):
        parts = [at(c, p, line, places) for c in curves for p in range(c.positions)]
        found = at(joined, 0, line, places)
        np.testing.assert_allclose(found, np.hstack(parts), rtol=1e-9, atol=1e-12)
