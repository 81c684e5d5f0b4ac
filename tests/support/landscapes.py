"""Similarity of layers by the definition (NeuSemSlice, Equations 1 and 2)."""

import numpy as np


def landscape(features):
    """F·Fᵀ of values `(samples, …)`."""
    rows = np.asarray(features, np.float64).reshape(len(features), -1)
    return rows @ rows.T


def similarity(first, second):
    """The cosine of two landscapes."""
    return (first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum())
