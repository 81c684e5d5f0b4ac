"""Compiled loops over the values at the vertices of a mesh."""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf.exactline._kernels.lines import copy_row


@compiled()
def extended(values, sources, weights):
    """Append the values of new vertices to values `(positions, vertices, channels)`."""
    positions, vertices, channels = values.shape
    out = np.empty((positions, vertices + len(weights), channels))
    for p in range(positions):
        block = out[p]
        for v in range(vertices):
            copy_row(values[p], v, block, v)
        for i in range(len(weights)):
            a, b, weight = sources[i, 0], sources[i, 1], weights[i]
            for c in range(channels):
                block[vertices + i, c] = block[a, c] + weight * (block[b, c] - block[a, c])
    return out


@compiled()
def nonzero(values):
    """Mark channels that are not zero at all vertices of a position, `(positions, channels)`."""
    positions, vertices, channels = values.shape
    found = np.zeros((positions, channels), np.bool_)
    for p in range(positions):
        for v in range(vertices):
            for c in range(channels):
                found[p, c] |= values[p, v, c] != 0.0
    return found


@compiled()
def window_sums(values, taps, kernel, bias, piece):
    """Return weighted sums of windows, skipping channels that are zero at all vertices."""
    windows, width = taps.shape
    vertices, channels = values.shape[1:]
    used = nonzero(values)
    out = np.empty((windows, vertices, len(bias)))
    matrix = np.empty_like(kernel)
    position, channel = np.empty(len(kernel), np.int64), np.empty(len(kernel), np.int64)
    space = np.empty(min(piece, vertices) * len(kernel))
    for w in range(windows):
        count = 0
        for t in range(width):
            p = taps[w, t]
            if p >= 0:
                for c in range(channels):
                    if used[p, c]:
                        position[count], channel[count] = p, c
                        copy_row(kernel, t * channels + c, matrix, count)
                        count += 1
        for first in range(0, vertices, piece):
            last = min(first + piece, vertices)
            gathered = space[: (last - first) * count].reshape(last - first, count)
            for v in range(first, last):
                for i in range(count):
                    gathered[v - first, i] = values[position[i], v, channel[i]]
            if count:
                np.dot(gathered, matrix[:count], out[w, first:last])
            for v in range(first, last):
                for o in range(len(bias)):
                    out[w, v, o] = bias[o] + (out[w, v, o] if count else 0.0)
    return out
