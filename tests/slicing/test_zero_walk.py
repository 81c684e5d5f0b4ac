"""The walk at θ = 0 on the backend: signs of changes are those of float64."""

import numpy as np
import pytest

from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.slicing._zero_walk import SplitMean


@pytest.mark.parametrize(
    "sizes", [(1e-3, 1.0, 7e5), (1e-33, 1.0, 1e37), (1e-36, 0.5, 2.0)], ids=str
)
def test_signs_of_changes_are_exact_beside_the_mean(sizes):
    """Values are the float32 numbers next to float64 means, and farther ones."""
    rng = np.random.default_rng(0)
    mean = np.concatenate([size * rng.normal(size=40) for size in sizes])
    mean[::5] = mean[::5].astype(np.float32)  # exact in float32
    mean[::7] = 0
    nearest = mean.astype(np.float32)
    above, below = (np.nextafter(nearest, np.float32(end)) for end in (np.inf, -np.inf))
    values = np.stack([nearest, above, below, 3 * nearest, -nearest, np.zeros_like(nearest)])
    least = np.finfo(np.float32).smallest_normal  # processors may take smaller ones for 0
    normal = ((values == 0) | (np.abs(values) >= least)) & ((mean == 0) | (np.abs(mean) >= least))
    expected = np.sign(values.astype(np.float64) - mean)
    found = np.asarray(compiled_function(SplitMean(mean).sign_of_delta)(values))
    np.testing.assert_array_equal(found[normal], expected[normal])
    assert set(np.unique(expected)) == {-1, 0, 1}
    # With bounds of a few units in the last place, so that values lie on their ends.
    bounds = np.spacing(np.abs(nearest)).astype(np.float64) * rng.integers(0, 3, len(mean))
    singles, values = values, values.astype(np.float64)
    expected = (values > mean + bounds).astype(int) - (values < mean - bounds)
    found = np.asarray(compiled_function(SplitMean(mean, bounds).sign_of_delta)(singles))
    np.testing.assert_array_equal(found[normal], expected[normal])
