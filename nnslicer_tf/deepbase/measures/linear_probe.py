"""A linear regression from all units of a group to each hypothesis."""

import numpy as np
from scipy import linalg

from nnslicer_tf.deepbase.measures.base import AdditiveMeasure, Sums
from nnslicer_tf.deepbase.measures.correlation import Correlation, Shifts

_RIDGE = 1e-10  # relative to the mean variance; for units that are constant or duplicates


class LinearProbe(AdditiveMeasure):
    """R² of the least-squares fit by all units of a group, with weights per standard deviation.

    R² is computed on the fitted records; its error includes the bias from few records.
    Memory: 20 · units² numbers; time of a look: 20 systems of that size.
    """

    name = "linear_probe"
    calibrate = Correlation.calibrate

    def statistics(self, units: np.ndarray, hypotheses: np.ndarray, calibration: Shifts) -> Sums:
        """Return the sums of first and second moments, including those between units."""
        u = units - calibration[0]
        return {**Correlation().statistics(units, hypotheses, calibration), "uu": u.T @ u}

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
    fit = linalg.solve(inner + ridge * np.eye(len(inner)), cross, assume_a="sym")
    return inner, cross, fit
