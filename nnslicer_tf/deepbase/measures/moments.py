"""Measures of sums of first and second moments: correlation, difference of means, linear probe."""

import numpy as np
from scipy import linalg

from nnslicer_tf.deepbase.measures.base import AdditiveMeasure, Block, Sums

Shifts = tuple[np.ndarray, np.ndarray]

_RIDGE = 1e-10  # relative to the mean variance; for units that are constant or duplicates


class Correlation(AdditiveMeasure):
    """Pearson's correlation, -1 … 1; NaN where a unit or a hypothesis is constant."""

    name = "correlation"

    def calibrate(self, block: Block) -> Shifts:
        """Return the first row; shifting values by it makes sums of squares accurate."""
        units, hypotheses = block[:1].rows()
        return units[0], hypotheses[0]

    def statistics(self, units: np.ndarray, hypotheses: np.ndarray, calibration: Shifts) -> Sums:
        """Return the sums of first and second moments."""
        u, h = units - calibration[0], hypotheses - calibration[1]
        return {
            "count": np.array(float(len(u))),
            "u": u.sum(axis=0),
            "h": h.sum(axis=0),
            "uu": (u * u).sum(axis=0),
            "hh": (h * h).sum(axis=0),
            "uh": u.T @ h,
        }

    def score(self, sums: Sums, calibration: Shifts) -> np.ndarray:
        """Return the correlations `(units, hypotheses)`."""
        n, u, h = sums["count"], sums["u"], sums["h"]
        u_scale, h_scale = np.sqrt(sums["uu"] - u * u / n), np.sqrt(sums["hh"] - h * h / n)
        return np.clip((sums["uh"] - np.outer(u, h) / n) / np.outer(u_scale, h_scale), -1, 1)


class DifferenceOfMeans(Correlation):
    """Mean where the hypothesis is 1 minus mean where it is 0, in the unit's deviations, or NaN."""

    name = "difference_of_means"
    binary = True

    def calibrate(self, block: Block) -> Shifts:
        """Return no shift of hypotheses, whose sums are then numbers of rows where they hold."""
        units, hypotheses = super().calibrate(block)
        return units, np.zeros_like(hypotheses)

    def score(self, sums: Sums, calibration: Shifts) -> np.ndarray:
        """Return the differences `(units, hypotheses)`."""
        n, holds, u, inside = (sums[k] for k in ("count", "h", "u", "uh"))
        difference = inside / holds - (u[:, None] - inside) / (n - holds)
        return difference / np.sqrt(sums["uu"] / n - (u / n) ** 2)[:, None]


class LinearProbe(Correlation):
    """R² of the least-squares fit by all units of a group, with weights per standard deviation.

    R² is computed on the fitted records; its error includes the bias from few records.
    Memory: 20 · units² numbers; time of a look: 20 systems of that size.
    """

    name = "linear_probe"

    def statistics(self, units: np.ndarray, hypotheses: np.ndarray, calibration: Shifts) -> Sums:
        """Return the sums of first and second moments, including those between units."""
        u = units - calibration[0]
        return {**super().statistics(units, hypotheses, calibration), "uu": u.T @ u}

    def score(self, sums: Sums, calibration: Shifts) -> np.ndarray:
        """Return R² `(1, hypotheses)`; NaN where a hypothesis is constant."""
        inner, cross, fit = _fit(sums)
        explained = ((2 * cross - inner @ fit) * fit).sum(axis=0)
        return (explained / (sums["hh"] - sums["h"] ** 2 / sums["count"]))[None]

    def weights(self, sums: Sums, calibration: Shifts) -> np.ndarray:
        """Return the weights `(units, hypotheses)`."""
        inner, _, fit = _fit(sums)
        return fit * np.sqrt(np.diag(inner) / sums["count"])[:, None]


def _fit(sums: Sums) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the centred products of units, of units and hypotheses, and the coefficients."""
    n, u, h = sums["count"], sums["u"], sums["h"]
    inner, cross = sums["uu"] - np.outer(u, u) / n, sums["uh"] - np.outer(u, h) / n
    ridge = _RIDGE * max(np.trace(inner) / len(inner), np.finfo(float).tiny)
    return inner, cross, linalg.solve(inner + ridge * np.eye(len(inner)), cross, assume_a="sym")
