"""Polygons in both directions."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.exactline import exact_plane
from nnslicer_tf.exactline.planar_partition import area_of


def network(activation):
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(4, activation, name="hidden")
    return keras.Sequential([keras.Input((3,)), hidden, layers.Dense(2, name="logits")])


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("first", range(4))
def test_coordinates_of_polygons_in_both_directions(backwards, first):
    """A quadrilateral in space, from each of its corners."""
    rng = np.random.default_rng(first)
    axes = rng.normal(size=(2, 3))
    corners = np.array([1.0, 2, 3]) + np.array([[0, 0], [3, 0.5], [2, 2], [-1, 1]]) @ axes
    corners = np.roll(corners, first, axis=0)
    corners = corners[::-1] if backwards else corners
    model = network("relu")
    partition = exact_plane(nns.InstrumentedModel(model), corners)
    np.testing.assert_allclose(partition.at(partition.corners), corners, atol=1e-12)
    assert area_of(partition.corners) > 0
    inside = rng.dirichlet(np.ones(4), 20) @ corners
    places = partition.coordinates(inside)
    np.testing.assert_allclose(partition.at(places), inside, atol=1e-12)
    outputs = partition.outputs(places)
    assert outputs.shape == (20, 2)
    np.testing.assert_allclose(outputs, model(inside), atol=1e-5)
