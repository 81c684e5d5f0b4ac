"""Compiled loops over step functions: their values on common pieces, and sums of them.

The rows of position p are `start[p]` to `start[p + 1]`, at ascending ratios. A row's values hold
up to the next row's ratio, and the last row repeats the one before. Loops read values at the
middle of a piece, where rounding errors of the ratios do not matter. `steps` are `Steps`; `uses`
and `taps` are those of `Uses`; results have the rows `new_start` at the ratios `new_ratio`.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf.exactline._kernels.lines import choose_weights, copy_row, nonzero_channels, row_at

_CELLS = 4096  # of an index that finds the row at a ratio


@compiled()
def changes(start, values):
    """Mark the rows that begin or end a position, or whose values differ from the row before."""
    marks = np.ones(len(values), np.bool_)
    for p in range(len(start) - 1):
        for j in range(start[p] + 1, start[p + 1] - 1):
            marks[j] = False
            for c in range(values.shape[1]):
                marks[j] |= values[j, c] != values[j - 1, c]
    return marks


@compiled()
def between(start, ratio, begin, end):
    """Return the rows of the pieces from `begin` to `end`: their indices, start and ratio."""
    rows = np.empty(len(ratio) + 2 * len(start), np.int64)
    new_ratio = np.empty(len(rows))
    new_start = np.zeros(len(start), np.int64)
    at = 0
    for p in range(len(start) - 1):
        j, last = start[p], start[p + 1] - 1
        j = row_at(ratio, j, last, begin)
        rows[at], new_ratio[at] = j, begin
        while j + 1 < last and ratio[j + 1] < end:
            j += 1
            at += 1
            rows[at], new_ratio[at] = j, ratio[j]
        rows[at + 1], new_ratio[at + 1] = j, end
        at += 2
        new_start[p + 1] = at
    return rows[:at].copy(), new_start, new_ratio[:at].copy()


@compiled()
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


@compiled()
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


@compiled(inline="always")
def _middle(ratio, row, last):
    return (ratio[row] + ratio[min(row + 1, last)]) / 2


@compiled(inline="always")
def _advanced(ratio, j, last, place):
    while j < last and ratio[j + 1] <= place:
        j += 1
    return j


@compiled()
def pulled_sums(steps, uses, taps, new_start, new_ratio, kernel, piece):
    """Return each position's sum of the windows that use it, times their weights."""
    start, ratio, values = steps
    positions, most = uses.shape
    outputs = values.shape[1]
    nonzero = nonzero_channels(start, values, 1)  # the products skip channels that are zero
    out = np.zeros((len(new_ratio), kernel.shape[1]))
    used = np.empty(most * outputs, np.int64)
    first_of = np.empty(most + 1, np.int64)
    matrix = np.empty((most * outputs, kernel.shape[1]))
    space = np.empty(piece * most * outputs)
    for p in range(positions):
        count = choose_weights(uses[p], taps[p], nonzero, kernel, used, first_of, matrix)
        if not count:
            continue
        end = new_start[p + 1] - 1
        for first in range(new_start[p], end, piece):
            last = min(first + piece, end)
            gathered = space[: (last - first) * count].reshape(last - first, count)
            for u in range(most):
                if first_of[u] == first_of[u + 1]:
                    continue
                j, stop = start[uses[p, u]], start[uses[p, u] + 1] - 1
                for r in range(first, last):
                    j = _advanced(ratio, j, stop, _middle(new_ratio, r, end))
                    for i in range(first_of[u], first_of[u + 1]):
                        gathered[r - first, i] = values[j, used[i]]
            np.dot(gathered, matrix[:count], out[first:last])
        copy_row(out, end - 1, out, end)  # the last row repeats the one before
    return out


@compiled()
def sums_between(start, ratio, values, counts):
    """Return each position's sums of its values at the ratios k/m, 0 < k < m, for several m."""
    out = np.zeros((len(counts), len(start) - 1, values.shape[1]))
    first_row = np.empty(_CELLS, np.int64)
    for p in range(len(start) - 1):
        j, last = start[p], start[p + 1] - 1
        for cell in range(_CELLS):
            first_row[cell] = j = _advanced(ratio, j, last, cell / _CELLS)
        for i in range(len(counts)):
            for k in range(1, counts[i]):
                place = k / counts[i]
                j = _advanced(ratio, first_row[int(place * _CELLS)], last, place)
                for c in range(values.shape[1]):
                    out[i, p, c] += values[j, c]
    return out


@compiled()
def values_at(start, ratio, values, places):
    """Return each position's values at ascending places, `(places, positions, channels)`."""
    out = np.empty((len(places), len(start) - 1, values.shape[1]))
    for p in range(len(start) - 1):
        j, last = start[p], start[p + 1] - 1
        for k in range(len(places)):
            j = _advanced(ratio, j, last, places[k])
            for c in range(values.shape[1]):
                out[k, p, c] = values[j, c]
    return out
