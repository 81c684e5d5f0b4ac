"""The difference between a unit's means where a hypothesis holds and where it does not."""

import numpy as np

from nnslicer_tf.deepbase.measures.base import AdditiveMeasure, Sums
from nnslicer_tf.deepbase.measures.correlation import Correlation, Shifts


class DifferenceOfMeans(AdditiveMeasure):
    """Mean where the hypothesis is 1 minus mean where it is 0, in the unit's deviations.

    NaN where a unit or a hypothesis is constant.
    """

    name = "difference_of_means"
    binary = True
    calibrate = Correlation.calibrate

    def statistics(self, units: np.ndarray, hypotheses: np.ndarray, calibration: Shifts) -> Sums:
        """Return counts and sums, of all rows and of those where a hypothesis holds."""
        u = units - calibration[0]
        return {
            "count": np.array(float(len(u))),
            "holds": hypotheses.sum(axis=0),
            "u": u.sum(axis=0),
            "uu": (u * u).sum(axis=0),
            "u_where_it_holds": u.T @ hypotheses,
        }

    def score(self, sums: Sums, calibration: Shifts) -> np.ndarray:
        """Return the differences `(units, hypotheses)`."""
        n, holds, u, inside = (sums[k] for k in ("count", "holds", "u", "u_where_it_holds"))
        difference = inside / holds - (u[:, None] - inside) / (n - holds)
        return difference / np.sqrt(sums["uu"] / n - (u / n) ** 2)[:, None]
