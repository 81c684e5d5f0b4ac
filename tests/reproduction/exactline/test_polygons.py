"""Integrated gradients averaged over a polygon of baselines."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.exactline import Attributor, exact_plane
from reproduction.exactline.polygons import mean_integrated_gradients

from ...exactline.lines import run
from ...exactline.planes import SQUARE, relu_network


@pytest.mark.parametrize("place", [(0.3, 0.4), (-1.0, 0.2), (0.0, 0.0), (1.5, 1.5)])
def test_mean_integrated_gradients_are_the_mean_over_baselines(place):
    """Inputs within the polygon of baselines, beside it, and at its corner."""
    model = relu_network((8, 8), inputs=4)
    im = nns.InstrumentedModel(model)
    origin, *axes = np.random.default_rng(1).normal(size=(3, 4)) * 2
    square = origin + SQUARE @ np.stack(axes)
    x = origin + np.array(place) @ np.stack(axes)
    mean = mean_integrated_gradients(im, x, square, 1)
    change = run(model, x[None])[0, 1] - exact_plane(im, square).integrate()[1]
    assert mean.sum() == pytest.approx(change, abs=1e-9)
    attributor = Attributor(im)
    grid = (np.arange(12) + 0.5) / 12  # the rule of midpoints
    places = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    each = [attributor.exact(x, origin + p @ np.stack(axes), 1) for p in places]
    np.testing.assert_allclose(np.mean(each, axis=0), mean, atol=0.01 * np.abs(mean).max())
    with pytest.raises(nns.errors.InvalidArgumentError, match="in the plane of the baselines"):
        mean_integrated_gradients(im, x + 1, square, 1)
