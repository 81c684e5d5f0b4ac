"""Pearson's correlation between each unit and each hypothesis."""

import numpy as np

from nnslicer_tf.deepbase.measures.base import AdditiveMeasure, Block, Sums

Shifts = tuple[np.ndarray, np.ndarray]


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
        covariance = sums["uh"] - np.outer(u, h) / n
        u_scale, h_scale = np.sqrt(sums["uu"] - u * u / n), np.sqrt(sums["hh"] - h * h / n)
        return np.clip(covariance / np.outer(u_scale, h_scale), -1, 1)
