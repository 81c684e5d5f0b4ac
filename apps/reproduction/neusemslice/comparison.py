"""Comparison of methods over repeated experiments: paired t-test, Cohen's d, areas.

The area is that under a curve of accuracy over compression rate, over the range of rates
that all compared curves have, divided by the range: the mean accuracy at equal compression.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from nnslicer_tf.errors import InvalidArgumentError

AccuracyCurve = tuple[np.ndarray, np.ndarray]
"""Rates and accuracies, in any order."""


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Compare two methods by their results in the same repeats, in the same order.

    Returns:
        "gain": mean of first - second, zero if it is zero up to rounding; "p_value" of the
        two-sided paired t-test, and "cohens_d": the gain over the differences' standard deviation,
        both NaN if all differences are the same up to rounding; "repeats".
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise InvalidArgumentError(
            "Two methods are compared by one figure each for the same repeats. "
            f"Received: {a.shape} and {b.shape} figures"
        )
    differences = a - b
    gain = float(differences.mean())
    spread = float(differences.std(ddof=1)) if len(a) > 1 else 0.0
    rounding = 1e-12 * max(np.abs(a).max(), np.abs(b).max())
    if abs(gain) <= rounding:
        gain = 0.0
    p_value = cohens_d = np.nan
    if spread > rounding:
        p_value, cohens_d = float(stats.ttest_rel(a, b).pvalue), gain / spread
    return {"gain": gain, "p_value": p_value, "cohens_d": cohens_d, "repeats": len(a)}


def area_under(curve: AccuracyCurve, low: float, high: float) -> float:
    """Return the mean height of a curve between two rates, interpolated linearly.

    For equal rates the best accuracy counts.
    """
    rates, heights = map(np.asarray, curve)
    distinct = np.unique(rates)
    best = np.array([heights[rates == rate].max() for rate in distinct])
    inside = distinct[(distinct > low) & (distinct < high)]
    grid = np.concatenate([[low], inside, [high]])
    return float(np.trapezoid(np.interp(grid, distinct, best), grid) / (high - low))


def compare(first: Sequence[AccuracyCurve], second: Sequence[AccuracyCurve]) -> dict[str, float]:
    """Compare two methods by the areas under their curves, over each repeat's common range."""
    areas = []
    for pair in zip(first, second, strict=True):
        low = max(float(np.min(rates)) for rates, _ in pair)
        high = min(float(np.max(rates)) for rates, _ in pair)
        if not low < high:
            raise InvalidArgumentError(
                f"The curves have no common range of rates: all begin by {low:.4f} only, and one "
                f"ends at {high:.4f}."
            )
        areas.append([area_under(curve, low, high) for curve in pair])
    return paired(*np.array(areas).reshape(-1, 2).T)
