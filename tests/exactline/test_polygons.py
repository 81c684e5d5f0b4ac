"""Polygons in both directions, and checkpoints of several networks."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.exactline import exact_plane
from nnslicer_tf.exactline.gradients import Attributor
from nnslicer_tf.exactline.planar_partition import area_of
from nnslicer_tf.exactline.plane import PlaneWalker

from .lines import sums_of_gradients
from .planes import relu_of


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


def test_a_checkpoint_of_two_networks_is_of_both(tmp_path):
    corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    one, two, other = (nns.InstrumentedModel(network(a)) for a in ("relu", "relu", "relu6"))
    PlaneWalker([one, two]).plane(corners, checkpoint=tmp_path)
    PlaneWalker([one, two]).plane(corners, checkpoint=tmp_path)
    for models in ([one, other], [other, two], one):
        with pytest.raises(nns.errors.ProfileMismatchError, match=r"different run \(model="):
            PlaneWalker(models).plane(corners, checkpoint=tmp_path)


def test_sums_weigh_the_first_and_the_last_gradient():
    """ReLU(u − 0.1) from 0 to 1: of the gradients at 0, ¼, ½, ¾ and 1, only the first is 0."""
    im = relu_of([[1, 0]], [-0.1])
    x, baseline = np.array([1.0, 0]), np.zeros(2)
    attributor = Attributor(im)
    for rule, value in {"left": 3 / 4, "right": 1.0, "trapezoid": 3.5 / 4}.items():
        sums = sums_of_gradients(attributor, x, baseline, 0, 4, rule)
        np.testing.assert_allclose(sums, [value, 0], atol=1e-6)
        path = attributor.path(x, baseline, 0)
        np.testing.assert_allclose(path.approximate(4, rule), [value, 0], atol=1e-6)
    np.testing.assert_allclose(attributor.exact(x, baseline, 0), [0.9, 0], atol=1e-6)
