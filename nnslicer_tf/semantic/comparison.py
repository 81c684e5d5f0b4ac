"""Comparison of methods over repeated experiments: paired t-test, Cohen's d, areas.

The area is that under a curve of accuracy over compression rate, over the range of rates
that all compared curves have, divided by the range: the mean accuracy at equal compression.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd

AccuracyCurve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Comparison(ShownAsTable):
    """Whether one method is better than another over the same repeats.

    Attributes:
        difference: Mean of first - second.
        p_value: p-value of the two-sided paired t-test; NaN for a single repeat or if all
            differences are the same.
        cohens_d: The mean difference divided by the differences' standard deviation.
        repeats: Number of pairs.
    """

    difference: float
    p_value: float
    cohens_d: float
    repeats: int

    def to_frame(self) -> "pd.DataFrame":
        """Return a table of one row."""
        import pandas as pd

        return pd.DataFrame([vars(self)])


def paired(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare two methods by their results in the same repeats.

    If all differences are the same, up to rounding, there is nothing to test, and the p-value and
    Cohen's d are NaN. A mean difference that is zero up to rounding is zero.

    Args:
        first: One method's results, one per repeat.
        second: The other's, in the same order.

    Raises:
        InvalidArgumentError: if the numbers of results differ or are zero.
    """
    from scipy import stats

    a, b = np.asarray(first, float), np.asarray(second, float)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise InvalidArgumentError(
            "Two methods are compared by one figure each for the same repeats. "
            f"Received: {a.shape} and {b.shape} figures"
        )
    gain = a - b
    mean = float(gain.mean())
    spread = gain.std(ddof=1) if len(gain) > 1 else 0.0
    rounding = 1e-12 * max(np.abs(a).max(), np.abs(b).max())
    if abs(mean) <= rounding:
        mean = 0.0
    if spread <= rounding:
        return Comparison(mean, np.nan, np.nan, len(gain))
    p_value = float(stats.ttest_rel(a, b).pvalue)
    return Comparison(mean, p_value, mean / float(spread), len(gain))


def common_range(curves: Sequence[AccuracyCurve]) -> tuple[float, float]:
    """Return the lowest and highest rate that all curves reach.

    Raises:
        InvalidArgumentError: if there is no such range.
    """
    low = max(float(np.min(rates)) for rates, _ in curves)
    high = min(float(np.max(rates)) for rates, _ in curves)
    if not low < high:
        raise InvalidArgumentError(
            "The curves have no common range of rates: they begin at "
            f"{[round(float(np.min(r)), 4) for r, _ in curves]} and end at "
            f"{[round(float(np.max(r)), 4) for r, _ in curves]}."
        )
    return low, high


def area_under(curve: AccuracyCurve, low: float, high: float) -> float:
    """Return the mean height of a curve between two rates, interpolated linearly.

    Args:
        curve: Rates and accuracies, in any order; for equal rates the best accuracy counts.
        low: The lower rate.
        high: The higher rate.
    """
    rates, heights = map(np.asarray, curve)
    distinct = np.unique(rates)
    best = np.array([heights[rates == rate].max() for rate in distinct])
    inside = distinct[(distinct > low) & (distinct < high)]
    grid = np.concatenate([[low], inside, [high]])
    return float(np.trapezoid(np.interp(grid, distinct, best), grid) / (high - low))


def compare(first: Sequence[AccuracyCurve], second: Sequence[AccuracyCurve]) -> Comparison:
    """Compare two methods by the areas under their curves, over each repeat's common range.

    Args:
        first: One method's curves (rates, accuracies), one per repeat.
        second: The other's, in the same order.

    Raises:
        InvalidArgumentError: if the numbers of curves differ, or two have no common range.
    """
    areas = []
    for pair in zip(first, second, strict=True):
        low, high = common_range(pair)
        areas.append([area_under(curve, low, high) for curve in pair])
    return paired(*np.array(areas).reshape(-1, 2).T)
