"""Statistics against their formulas."""

import numpy as np
import pytest

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.neusemslice.tables import area_under, compare, paired


def test_paired_t_test_and_cohens_d():
    """Differences 1, 2, 3, 4, 5: mean 3, deviation √2.5, t = 3 / √(2.5/5) = 4.243, 4 degrees."""
    found = paired([2, 4, 6, 8, 10], [1, 2, 3, 4, 5])
    assert found["gain"] == 3
    assert found["cohens_d"] == pytest.approx(3 / np.sqrt(2.5))
    assert found["p_value"] == pytest.approx(0.013236, abs=1e-5)
    assert found["repeats"] == 5


@pytest.mark.parametrize(
    "figures",
    [([1.0], [0.5]), ([1.0, 2.0], [0.5, 1.5]), ([0.7, 0.6, 0.8], [0.2, 0.1, 0.3])],
)
def test_without_spread_there_is_no_p_value(figures):
    """0.6 - 0.1 and 0.8 - 0.3 differ by rounding alone."""
    found = paired(*figures)
    assert found["gain"] == pytest.approx(0.5)
    assert np.isnan(found["p_value"]) and np.isnan(found["cohens_d"])


def test_differences_that_cancel_make_no_difference():
    """0.1 + 0.2 - 0.3 is not zero in floating point."""
    found = paired([0.4, 0.5, 0.0], [0.3, 0.3, 0.3])
    assert np.mean(np.subtract([0.4, 0.5, 0.0], [0.3, 0.3, 0.3])) != 0
    assert (found["gain"], found["cohens_d"]) == (0, 0)
    assert found["p_value"] == pytest.approx(1)


def test_area_is_the_mean_height():
    curve = (np.array([0.8, 0.0, 0.4]), np.array([0.0, 1.0, 1.0]))
    assert area_under(curve, 0.0, 0.4) == 1.0
    assert area_under(curve, 0.4, 0.8) == 0.5
    assert area_under(curve, 0.2, 0.8) == pytest.approx((0.2 * 1 + 0.4 * 0.5) / 0.6)
    doubled = (np.array([0.0, 0.0, 1.0]), np.array([0.2, 0.6, 0.6]))
    assert area_under(doubled, 0.0, 1.0) == pytest.approx(0.6)


def test_curves_are_compared_over_their_common_range():
    short = (np.array([0.2, 0.6]), np.array([1.0, 0.8]))
    long = (np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    found = compare([short, short], [long, long])
    assert found["gain"] == pytest.approx(0.9 - 0.6)
    apart = (np.array([0.7, 0.9]), np.array([1.0, 0.8]))
    with pytest.raises(InvalidArgumentError, match="no common range"):
        compare([short], [apart])


def test_unequal_repeats_are_refused():
    with pytest.raises(InvalidArgumentError, match="same repeats"):
        paired([1, 2], [1])
