"""The exclusion of sums of products and of softmax rows, compiled by Numba.

Both compute the local values of a few outputs together, and search their bounds as weighted sums do
(see `exclusion`). A product-sum has two local values for each product: first Δa·b for all products,
then a·Δb. With `by_sum`, the exclusion is relative to the sum of the local values instead of y.
"""

from collections import namedtuple

import numpy as np
from numba import boolean, float32, float64, int8, int32, types

from nnslicer_tf._kernels.compiled import argument, compiled
from nnslicer_tf._kernels.exclusion import (
    TOGETHER,
    aligned,
    buffers,
    excluded_bound,
    first_division,
    give,
    memory_of,
    multiply,
    workspace,
)
from nnslicer_tf._kernels.vectors import (
    LANES,
    at,
    lane_sum,
    load,
    magnitude,
    pointer,
    read,
    splat,
    store,
    widen,
    write,
)

# The factor of a product: values and changes.
Factor = namedtuple("Factor", ["values", "delta"])
# The kernels' memory: local values; totals and thresholds; intervals and places; `buffers`.
Memory = namedtuple("Memory", ["values", "moments", "lists", "single", "whole", "double"])

_MEMORY = memory_of(Memory, float32[:, ::1], float64[:, ::1], int32[:, ::1])
_SIGNS, _FLOATS, _GIVEN = argument(int8, 3), argument(float32, 3), int32[:, :, ::1]
_FACTOR = types.NamedUniTuple(float32[:, :, ::1], 2, Factor)

# Number of local values that are processed together, so that they stay in the L1 cache.
_TOGETHER_VALUES = 1 << 13


def product_sum(
    signs: np.ndarray,
    y: np.ndarray,
    first: tuple[np.ndarray, np.ndarray],
    second: tuple[np.ndarray, np.ndarray],
    theta: float,
    by_sum: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Expand sums y[g, m, n] = Σ_s a[g, m, s] · b[g, n, s] into CONTRIB of a and b, int32.

    `signs` are sign(CONTRIB · Δy), `(groups, m, n)` int8; samples are groups as well. `first` holds
    the values and Δ of a, `(groups, m, s)` float32, `second` those of b.
    """
    size = first[0].shape[-1]
    a, b = (Factor(*map(_padded, factor)) for factor in (first, second))
    to_a, to_b = np.zeros(a.values.shape, np.int32), np.zeros(b.values.shape, np.int32)
    _product_sum(
        np.ascontiguousarray(signs, np.int8),
        np.ascontiguousarray(y, np.float32),
        a,
        b,
        theta,
        by_sum,
        to_a,
        to_b,
        _memory(2 * a.values.shape[-1]),
    )
    return to_a[..., :size], to_b[..., :size]


def softmax(
    signs: np.ndarray,
    y: np.ndarray,
    delta: np.ndarray,
    theta: float,
    by_sum: bool,
) -> np.ndarray:
    """Expand softmax rows: the local values of output i are y_i · (δ_ij − y_j) · Δx_j.

    All arrays are `(rows, entries)`: `signs` = sign(CONTRIB · Δy) int8, probabilities `y` and the
    inputs' Δ (0 for masked entries) float32, the result int32.
    """
    size = y.shape[-1]
    y, delta = _padded(y), _padded(delta)
    received = np.zeros(y.shape, np.int32)
    _softmax(
        np.ascontiguousarray(signs, np.int8),
        y,
        delta,
        theta,
        by_sum,
        received,
        _memory(y.shape[-1]),
    )
    return received[:, :size]


def _memory(stride: int) -> Memory:
    together = max(1, min(TOGETHER, _TOGETHER_VALUES // stride))
    return Memory(
        values=aligned((together + 1, stride), np.float32),
        moments=np.zeros((2, TOGETHER), np.float64),
        lists=np.zeros((2, TOGETHER), np.int32),
        **buffers(stride),
    )


def _padded(x: np.ndarray) -> np.ndarray:
    """Return float32 rows padded to whole vectors, none of which crosses a cache line."""
    width = x.shape[-1]
    rows = aligned((*x.shape[:-1], -(-width // LANES) * LANES), np.float32)
    rows[..., :width] = x
    return rows


@compiled((_SIGNS, _FLOATS, _FACTOR, _FACTOR, float64, boolean, _GIVEN, _GIVEN, _MEMORY))
def _product_sum(signs, y, a, b, theta, by_sum, to_a, to_b, memory):
    """Add the signs that a and b receive."""
    groups, rows, columns = y.shape
    stride = a.values.shape[2]
    together = memory.values.shape[0] - 1
    work = workspace(memory.single, memory.whole, memory.double)
    v, marks = pointer(memory.values), pointer(signs)
    thresholds = pointer(memory.moments)
    waiting, places = pointer(memory.lists), at(pointer(memory.lists), TOGETHER)
    values_a, values_b = pointer(a.values), pointer(b.values)
    delta_a, delta_b = pointer(a.delta), pointer(b.delta)
    signs_a, signs_b = pointer(to_a), pointer(to_b)
    for group in range(groups):
        for m in range(rows):
            row = (group * rows + m) * stride
            n = 0
            while n < columns:
                count = 0
                while n < columns and count < together:
                    if read(marks, (group * rows + m) * columns + n) != 0:
                        # The local values Δa·b, then a·Δb.
                        column = (group * columns + n) * stride
                        local = at(v, count * 2 * stride)
                        sums, sizes = splat(0.0), splat(np.float32(0))
                        x, w = at(delta_a, row), at(values_b, column)
                        sums, sizes = multiply(local, stride, x, w, sums, sizes)
                        x, w = at(values_a, row), at(delta_b, column)
                        sums, sizes = multiply(at(local, stride), stride, x, w, sums, sizes)
                        total, magnitudes = lane_sum(sums), lane_sum(sizes)
                        threshold = theta * abs(total if by_sum else np.float64(y[group, m, n]))
                        if not (threshold > 0 and abs(total) < threshold):
                            write(thresholds, count, threshold)
                            write(places, count, np.int32(n))
                            begun = first_division(
                                local, 2 * stride, total, magnitudes, threshold, work, count
                            )
                            write(waiting, count, np.int32(begun))
                            count += 1
                    n += 1
                for j in range(count):
                    local = at(v, j * 2 * stride)
                    begun, threshold = np.int64(read(waiting, j)), read(thresholds, j)
                    bound, ties = excluded_bound(local, 2 * stride, threshold, begun, work, j)
                    place = np.int64(read(places, j))
                    sign = np.int32(read(marks, (group * rows + m) * columns + place))
                    column = (group * columns + place) * stride
                    second = at(local, stride)
                    ties = give(second, stride, bound, ties, sign, at(signs_b, column), None)
                    give(local, stride, bound, ties, sign, at(signs_a, row), None)


@compiled(
    (
        *(argument(int8, 2), float32[:, ::1], float32[:, ::1], float64, boolean),
        *(int32[:, ::1], _MEMORY),
    )
)
def _softmax(signs, y, delta, theta, by_sum, received, memory):
    """Add the signs that the inputs receive."""
    rows, stride = y.shape
    entries = signs.shape[1]
    together = memory.values.shape[0] - 1
    work = workspace(memory.single, memory.whole, memory.double)
    v, thresholds = pointer(memory.values), pointer(memory.moments)
    waiting, places = pointer(memory.lists), at(pointer(memory.lists), TOGETHER)
    for row in range(rows):
        probabilities, changes = at(pointer(y), row * stride), at(pointer(delta), row * stride)
        to = at(pointer(received), row * stride)
        i = 0
        while i < entries:
            count = 0
            while i < entries and count < together:
                if signs[row, i] != 0:
                    # The local values y_i · (δ_ij − y_j) · Δ_j. 1 − y_i is computed as the sum of
                    # the others: near 1, the difference would only be rounding.
                    local = at(v, count * stride)
                    own = read(probabilities, i)
                    factor, others = splat(-own), splat(0.0)
                    write(probabilities, i, np.float32(0))
                    for k in range(0, stride, LANES):
                        near = load(probabilities, k)
                        store(local, k, factor * near * load(changes, k))
                        others = others + widen(near)
                    write(probabilities, i, own)
                    rest = np.float32(lane_sum(others))
                    write(local, i, own * rest * read(changes, i))
                    sums, sizes = splat(0.0), splat(np.float32(0))
                    for k in range(0, stride, LANES):
                        value = load(local, k)
                        sums = sums + widen(value)
                        sizes = sizes + magnitude(value)
                    total, magnitudes = lane_sum(sums), lane_sum(sizes)
                    threshold = theta * abs(total if by_sum else np.float64(y[row, i]))
                    if not (threshold > 0 and abs(total) < threshold):
                        write(thresholds, count, threshold)
                        write(places, count, np.int32(i))
                        begun = first_division(
                            local, stride, total, magnitudes, threshold, work, count
                        )
                        write(waiting, count, np.int32(begun))
                        count += 1
                i += 1
            for j in range(count):
                local = at(v, j * stride)
                begun, threshold = np.int64(read(waiting, j)), read(thresholds, j)
                bound, ties = excluded_bound(local, stride, threshold, begun, work, j)
                place = np.int64(read(places, j))
                give(local, stride, bound, ties, np.int32(signs[row, place]), to, None)
