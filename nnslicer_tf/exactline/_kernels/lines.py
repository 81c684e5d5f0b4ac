"""Compiled loops over curves: their bends, their common rows, and their values there.

The rows of segment s are `start[s]` to `start[s + 1]`, at ascending ratios, with values `(rows,
channels)`; see `Curve`. A window reads the positions `taps`, `(windows, taps)`, -1 for none;
`new_start` and `new_ratio` are the common rows of its positions. A crossing is the row before it
and its position between that row and the next, in (0, 1). Ratios closer than `tolerance` are equal.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf._kernels.vectors import pointer, read, write


@compiled
def with_room(array, more):
    """Return a copy with room for `more` rows; slice assignments take Numba seconds to compile."""
    out = np.empty((len(array) + more, *array.shape[1:]), array.dtype)
    for i in range(array.size):
        write(pointer(out), i, read(pointer(array), i))
    return out


@compiled
def row_at(ratio, begin, end, place):
    """Return the last of the rows from `begin` to `end` whose ratio is not above `place`."""
    while end - begin > 1:
        middle = (begin + end) // 2
        if ratio[middle] <= place:
            begin = middle
        else:
            end = middle
    return begin


@compiled
def distinct(left, alpha, ratio, tolerance):
    """Return the crossings, given in ascending order, that are not too close to other rows."""
    kept = np.zeros(len(left), np.bool_)
    previous = 0.0
    for i in range(len(left)):
        if i and left[i] != left[i - 1]:
            previous = 0.0
        width = ratio[left[i] + 1] - ratio[left[i]]
        place = alpha[i] * width
        if place - previous > tolerance and width - place > tolerance:
            kept[i] = True
            previous = place
    return left[kept], alpha[kept]


@compiled
def common_rows(start, ratio, taps, lines, tolerance):
    """Return start and ratio of the rows where any of a window's positions has a row."""
    windows = len(taps)
    new_start = np.zeros(windows * lines + 1, np.int64)
    heads = np.empty(taps.shape[1], np.int64)
    total = 0
    for w in range(windows):
        for t in range(taps.shape[1]):
            if taps[w, t] >= 0:
                total += start[(taps[w, t] + 1) * lines] - start[taps[w, t] * lines]
    new_ratio = np.empty(total + 2 * windows * lines)
    at = np.int64(0)
    for w in range(windows):
        for k in range(lines):
            at = _merge(start, ratio, taps[w], lines, k, tolerance, heads, new_ratio, at)
            new_start[w * lines + k + 1] = at
    return new_start, new_ratio[:at].copy()


@compiled
def _merge(start, ratio, taps, lines, k, tolerance, heads, out, at):
    """Write the ratios of line k at a window's positions into `out`, each once."""
    begin = ratio[start[k]]  # the same at every position, like the end
    end = ratio[start[k + 1] - 1]
    out[at] = last = begin
    for t in range(len(taps)):
        heads[t] = start[taps[t] * lines + k] + 1 if taps[t] >= 0 else -1
    while True:
        least = end
        for t in range(len(taps)):
            if heads[t] >= 0:
                while ratio[heads[t]] <= last:
                    heads[t] += 1
                least = min(least, ratio[heads[t]])
        if least >= end:
            break
        if least - out[at] > tolerance:
            at += 1
            out[at] = least
        last = least
    if out[at] > begin and end - out[at] <= tolerance:
        at -= 1
    out[at + 1] = end
    return at + 2


@compiled
def gather(curve, taps, new_start, new_ratio, first, out):
    """Write the values of every window's positions at common rows, 0 where there is no position."""
    lines, start, ratio, values = curve
    channels = values.shape[1]
    stop = first + len(out)
    s = row_at(new_start, np.int64(0), len(new_start), first)
    while s < len(new_start) - 1 and new_start[s] < stop:
        w, k = s // lines, s % lines
        lowest, highest = max(new_start[s], first), min(new_start[s + 1], stop)
        for t in range(taps.shape[1]):
            into = out[lowest - first : highest - first, t * channels : (t + 1) * channels]
            if taps[w, t] < 0:
                into[:] = 0.0
                continue
            i = taps[w, t] * lines + k
            _gather_rows(ratio, values, start[i], start[i + 1], new_ratio[lowest:highest], into)
        s += 1


@compiled
def _gather_rows(ratio, values, begin, end, places, out):
    """Write the values of the rows `begin` to `end` at ascending places."""
    j = row_at(ratio, begin, end - 1, places[0])
    for r in range(len(places)):
        while j < end - 1 and ratio[j + 1] <= places[r]:
            j += 1
        weight = 0.0
        if j < end - 1:
            weight = (places[r] - ratio[j]) / (ratio[j + 1] - ratio[j])
        for c in range(out.shape[1]):
            out[r, c] = values[j, c]
            if weight > 0.0:
                out[r, c] += weight * (values[j + 1, c] - values[j, c])


@compiled
def bends(ratio, values, noise):
    """Mark the ends of a line, and the rows at which the values bend.

    A row on the chord between the last marked row and the next row is no bend; the tolerance is
    `noise` times the largest value.
    """
    kept = np.ones(len(ratio), np.bool_)
    limit = noise * np.abs(values).max()
    last = 0
    for j in range(1, len(ratio) - 1):
        weight = (ratio[j] - ratio[last]) / (ratio[j + 1] - ratio[last])
        farthest = 0.0
        for i in range(values.shape[1]):
            chord = values[last, i] + weight * (values[j + 1, i] - values[last, i])
            farthest = max(farthest, abs(values[j, i] - chord))
        kept[j] = farthest > limit
        if kept[j]:
            last = j
    return kept
