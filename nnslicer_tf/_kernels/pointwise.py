"""Loops over single neurons: Δ, and the exclusion in merges of a few tensors."""

import numpy as np
from numba import float32, float64, int8, int32, int64

from nnslicer_tf._kernels.compiled import argument, compiled

_SIGNS, _VECTOR = argument(int8, 1), argument(float64, 1)


def deltas(
    values: np.ndarray, means: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return Δ = value − mean `(batch, *shape)`, rounded to float32, and its signs as int8.

    Both are 0 for values from `low` to `high`.
    """
    found, signs = np.empty(values.shape, np.float32), np.empty(values.shape, np.int8)
    rows = (len(values), means.size)
    _deltas(
        np.ascontiguousarray(values, np.float32).reshape(rows),
        *(np.ascontiguousarray(part, np.float64).ravel() for part in (means, low, high)),
        found.reshape(rows),
        signs.reshape(rows),
    )
    return found, signs


@compiled((argument(float32, 2), _VECTOR, _VECTOR, _VECTOR, float32[:, ::1], int8[:, ::1]))
def _deltas(values, means, low, high, found, signs):
    for sample in range(values.shape[0]):
        for n in range(values.shape[1]):
            value = np.float64(values[sample, n])
            sign = np.int8(value > high[n]) - np.int8(value < low[n])
            found[sample, n] = np.float32(value - means[n]) * np.float32(sign != 0)
            signs[sample, n] = sign


def merge(signs: np.ndarray, y: np.ndarray, values: np.ndarray, theta: float) -> np.ndarray:
    """Expand an addition, subtraction or multiplication of a few tensors.

    `signs` are `(neurons,)` int8, `y` is what θ is multiplied by, up to its sign, and the local
    values are `(tensors, neurons)` float64. Returns the inputs' CONTRIB, `(tensors, neurons)`
    int32.
    """
    received = np.zeros(values.shape, np.int32)
    if len(values) == 2:
        _merge_two(signs, y.astype(np.float64, copy=False), values, theta, received)
    else:
        order = np.zeros(len(values), np.int64)
        _merge(signs, y.astype(np.float64, copy=False), values, theta, order, received)
    return received


@compiled((_SIGNS, _VECTOR, argument(float64, 2), float64, int32[:, ::1]))
def _merge_two(signs, y, values, theta, received):
    """Do the same as `_merge` for two tensors, in vector code without sorting."""
    for n in range(values.shape[1]):
        first, second = values[0, n], values[1, n]
        threshold = theta * abs(y[n])
        second_larger = abs(second) >= abs(first)
        smaller = first if second_larger else second
        any_kept = not abs(first + second) < threshold
        both_kept = any_kept and not abs(smaller) < threshold
        sign = np.int32(signs[n])
        first_sign = np.int32(first > 0) - np.int32(first < 0)
        second_sign = np.int32(second > 0) - np.int32(second < 0)
        received[0, n] = sign * first_sign * np.int32(both_kept or (any_kept and not second_larger))
        received[1, n] = sign * second_sign * np.int32(both_kept or (any_kept and second_larger))


@compiled((_SIGNS, _VECTOR, argument(float64, 2), float64, int64[::1], int32[:, ::1]))
def _merge(signs, y, values, theta, order, received):
    tensors, neurons = values.shape
    for n in range(neurons):
        if signs[n] == 0:
            continue
        threshold = theta * abs(y[n])
        for k in range(tensors):
            place = k
            while place > 0 and abs(values[order[place - 1], n]) > abs(values[k, n]):
                order[place] = order[place - 1]
                place -= 1
            order[place] = k
        total = 0.0
        excluded = 0
        for k in range(tensors):
            total += values[order[k], n]
            if abs(total) < threshold:
                excluded = k + 1
        for k in range(excluded, tensors):
            v = values[order[k], n]
            received[order[k], n] = signs[n] * (np.int32(v > 0) - np.int32(v < 0))
