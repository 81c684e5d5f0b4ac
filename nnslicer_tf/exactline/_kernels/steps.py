"""Compiled loops over step functions: their values on common pieces, and sums of them.

The rows of position p are `start[p]` to `start[p + 1]`, at ascending ratios. A row's values hold
up to the next row's ratio, and the last row repeats the one before. Loops read values at the
middle of a piece, where rounding errors of the ratios do not matter. `steps` are `Steps`; `uses`
and `taps` are those of `Uses`; results have the rows `new_start` at the ratios `new_ratio`.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled, inlined


@compiled
def add_moved(steps, uses, columns, new_start, new_ratio, out):
    """Add to each position the values of the windows that use it."""
    start, ratio, values = steps
    for p in range(len(uses)):
        for u in range(uses.shape[1]):
            window, column = uses[p, u], columns[p, u]
            if window < 0:
                continue
            j, last = start[window], start[window + 1] - 1
            for r in range(new_start[p], new_start[p + 1]):
                j = _advanced(ratio, j, last, _middle(new_ratio, r, new_start[p + 1] - 1))
                for c in range(out.shape[1]):
                    out[r, c] += values[j, column + c]


@compiled
def products(steps, others, new_start, new_ratio):
    """Return each position's values times others, `(new rows, other channels)`."""
    channels, other_channels = steps.values.shape[1], others.values.shape[1]
    out = np.empty((len(new_ratio), other_channels))
    for p in range(len(steps.start) - 1):
        j, last = steps.start[p], steps.start[p + 1] - 1
        i, other_last = others.start[p], others.start[p + 1] - 1
        for r in range(new_start[p], new_start[p + 1]):
            place = _middle(new_ratio, r, new_start[p + 1] - 1)
            j = _advanced(steps.ratio, j, last, place)
            i = _advanced(others.ratio, i, other_last, place)
            for first in range(0, other_channels, channels):
                for c in range(channels):
                    out[r, first + c] = steps.values[j, c] * others.values[i, first + c]
    return out


@inlined
def _middle(ratio, row, last):
    return (ratio[row] + ratio[min(row + 1, last)]) / 2


@inlined
def _advanced(ratio, j, last, place):
    while j < last and ratio[j + 1] <= place:
        j += 1
    return j
