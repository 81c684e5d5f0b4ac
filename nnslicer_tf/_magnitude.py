"""Selection of the smallest or largest values, with the same rule for ties everywhere."""

import numpy as np


def smallest(values: np.ndarray, count: int) -> np.ndarray:
    """Return a boolean array of the values' shape, True for the `count` smallest.

    Ties are broken by C order: the first ones are taken. Takes linear time; nothing is sorted.

    Args:
        values: Numbers that are not NaN.
        count: Number of values to choose, at most as many as there are.
    """
    flat = values.ravel()
    if count <= 0:
        return np.zeros(values.shape, bool)
    bound = np.partition(flat, count - 1)[count - 1]
    chosen = flat < bound
    chosen[np.flatnonzero(flat == bound)[: count - chosen.sum()]] = True
    return chosen.reshape(values.shape)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return a boolean array, True for the `count` largest; ties as in `smallest`."""
    return smallest(-values, count)
