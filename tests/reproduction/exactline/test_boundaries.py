"""Boundaries that are followed alone are those of all regions."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.exactline import exact_plane
from nnslicer_tf.exactline.planar_partition import area_of
from reproduction.exactline.boundaries import clipped, follow

from ...exactline.lines import float64_model, run
from ...exactline.planes import SQUARE, polygon, relu_of
from ...exactline.test_walk import MODELS, dense, sequential, without_softmax


def lengths(segments):
    return np.linalg.norm(np.diff(segments, axis=1), axis=-1).sum()


@pytest.mark.parametrize(
    ("name", "weights", "seed", "scale"),
    [("dense", 2, 2, 6.0), ("relu then pool", 2, 3, 2.5), ("residual", 5, 1, 6.0)],
)
def test_followed_boundaries_are_those_of_the_partition(name, weights, seed, scale):
    model = float64_model(MODELS[name], seed=weights)
    im = nns.InstrumentedModel(model)
    corners = polygon(model, scale=scale, seed=seed)
    classes = exact_plane(im, corners).classify()
    found = follow(im, corners)
    assert len(classes.to_frame()) == 3
    assert lengths(found.segments) == pytest.approx(lengths(classes.boundary()), rel=1e-6)
    middles = found.segments.mean(axis=1)
    outputs = np.sort(run(without_softmax(model), found.plane.at(middles)), axis=1)
    np.testing.assert_allclose(outputs[:, -1], outputs[:, -2], atol=1e-9)
    for a, b, _, length in found.to_frame().itertuples(index=False):
        assert length == pytest.approx(lengths(classes.boundary(a, b)), rel=1e-6)


def test_the_work_is_limited():
    model = float64_model(MODELS["dense"], seed=3)
    corners = polygon(model, scale=2.5)
    with pytest.raises(
        nns.errors.TooManyRegionsError, match="More than 1 region had to be visited"
    ):
        follow(model, corners, max_regions=1)


@pytest.mark.parametrize("classes", [1, 100])
def test_one_value_or_many_have_no_boundaries(classes):
    model = relu_of([[1, 0]], [0]) if classes == 1 else sequential((2,), dense(classes))()
    with pytest.raises(nns.errors.InvalidArgumentError, match="2 to 64 values"):
        follow(model, SQUARE)


CLIPPED = {  # by the unit square: corners, and the area in common
    "itself": (SQUARE, 1.0),
    "half of it": ([[0, 0], [1, 0], [0, 1]], 0.5),  # its corners lie on the sides
    "around it": ([[-1, -1], [2, -1], [2, 2], [-1, 2]], 1.0),
    "shifted": ([[0.5, 0.25], [2, 0.25], [2, 3], [0.5, 3]], 0.5 * 0.75),
    "a corner of it": ([[0.5, 0], [1.5, 0], [1, 0.5]], 0.125),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_intersections_of_polygons(name):
    corners, area = CLIPPED[name]
    found = clipped(np.array(corners, float), SQUARE)
    assert area_of(found) == pytest.approx(area, abs=1e-15)
    assert (found >= 0).all() and (found <= 1).all()
