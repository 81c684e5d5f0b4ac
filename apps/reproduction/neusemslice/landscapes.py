"""Similarity of layers by their embedding landscapes (NeuSemSlice, Equations 1 and 2)."""

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError


def landscape(features: np.ndarray) -> np.ndarray:
    """Return M = F·Fᵀ `(samples, samples)` float64 of values `(samples, …)` (Equation 1)."""
    rows = np.asarray(features, np.float64).reshape(len(features), -1)
    return rows @ rows.T


def similarity(first: np.ndarray, second: np.ndarray) -> float:
    """Return the cosine of two landscapes `(samples, samples)`, 0 … 1 (Equation 2).

    All-zero landscapes are similar to each other, and to nothing else.
    """
    if first.shape != second.shape:
        raise InvalidArgumentError(
            "Landscapes must be of the same samples. "
            f"Received: shapes {first.shape} and {second.shape}"
        )
    if not first.any() or not second.any():
        return float(first.any() == second.any())
    return float(np.vdot(first, second) / (np.linalg.norm(first) * np.linalg.norm(second)))
