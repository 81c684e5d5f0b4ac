"""The exclusion of sums of products and of softmax rows, compiled by Numba.

Both compute the local values of a few outputs together, and find those that are kept in the same
way as a weighted sum (see `exclusion`). A product-sum has two local values for each product: first
Δa·b for all products, then a·Δb.
"""

import numpy as np
from numba import boolean, float32, float64, int8, int32

from nnslicer_tf._kernels.compiled import argument, compiled, inlined
from nnslicer_tf._kernels.exclusion import (
    TOGETHER,
    aligned,
    buffers,
    excluded_bound,
    first_division,
    give_amounts,
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
    where,
    widen,
    write,
)

# Number of local values that are processed together, so that they stay in the L1 cache.
_TOGETHER_VALUES = 1 << 13


def product_sum(
    signs: np.ndarray,
    y: np.ndarray,
    first: tuple[np.ndarray, np.ndarray],
    second: tuple[np.ndarray, np.ndarray],
    theta: float,
    by_sum: bool,
    middles: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Expand sums y[g, m, n] = Σ_s a[g, m, s] · b[g, n, s].

    Args:
        signs: sign(CONTRIB · Δy), `(groups, m, n)` int8; samples are groups as well.
        y: Values of the outputs, of the same shape, float32.
        first: Values and Δ of a, `(groups, m, s)` float32.
        second: Values and Δ of b, `(groups, n, s)` float32.
        theta: Threshold θ.
        by_sum: Whether the exclusion is relative to the sum of the local values instead of y.
        middles: For amounts: midpoints of a and b between reference and sample; `signs` are then
            multipliers, float32.

    Returns:
        CONTRIB of a and of b, int32, with their shapes; for amounts, their multipliers, float32.
    """
    amounts = middles is not None
    size = first[0].shape[-1]
    a, da, b, db = (_padded(x) for x in (*first, *second))
    middle_a, middle_b = (_padded(x) for x in middles or (np.zeros((1, 1, 1)),) * 2)
    stride = a.shape[-1]
    to_a, to_b = np.zeros(a.shape, np.int32), np.zeros(b.shape, np.int32)
    amounts_a, amounts_b = (
        np.zeros(x.shape if amounts else (1, 1, LANES), np.float32) for x in (a, b)
    )
    together = max(1, min(TOGETHER, _TOGETHER_VALUES // (2 * stride)))
    _product_sum(
        np.ascontiguousarray(signs != 0 if amounts else signs, np.int8),
        np.ascontiguousarray(y, np.float32),
        a,
        da,
        b,
        db,
        theta,
        by_sum,
        to_a,
        to_b,
        aligned((together + 1, 2 * stride), np.float32),
        np.zeros((3, TOGETHER), np.float64),
        np.zeros((2, TOGETHER), np.int32),
        *buffers(2 * stride),
        amounts,
        np.ascontiguousarray(signs, np.float32) if amounts else np.zeros((1, 1, 1), np.float32),
        middle_a,
        middle_b,
        amounts_a,
        amounts_b,
    )
    found = (amounts_a, amounts_b) if amounts else (to_a, to_b)
    return found[0][..., :size], found[1][..., :size]


def softmax(
    signs: np.ndarray,
    y: np.ndarray,
    delta: np.ndarray,
    theta: float,
    by_sum: bool,
    means: np.ndarray | None = None,
) -> np.ndarray:
    """Expand softmax rows: the local values of output i are y_i · (δ_ij − y_j) · Δx_j.

    Args:
        signs: sign(CONTRIB · Δy), `(rows, entries)` int8.
        y: Probabilities, of the same shape, float32.
        delta: Δ of the inputs, of the same shape, float32; 0 for masked entries.
        theta: Threshold θ.
        by_sum: As in `product_sum`.
        means: For amounts: q of `rescale.logarithmic_means`, of the same shape; `signs` are then
            multipliers, float32.

    Returns:
        CONTRIB of the inputs, int32, of the same shape; for amounts, their multipliers, float32.
    """
    amounts = means is not None
    size = y.shape[-1]
    y, delta = _padded(y), _padded(delta)
    stride = y.shape[-1]
    received = np.zeros(y.shape, np.int32)
    received_amounts = np.zeros(y.shape if amounts else (1, LANES), np.float32)
    together = max(1, min(TOGETHER, _TOGETHER_VALUES // stride))
    _softmax(
        np.ascontiguousarray(signs != 0 if amounts else signs, np.int8),
        y,
        delta,
        theta,
        by_sum,
        received,
        aligned((together + 1, stride), np.float32),
        np.zeros((3, TOGETHER), np.float64),
        np.zeros((2, TOGETHER), np.int32),
        *buffers(stride),
        amounts,
        np.ascontiguousarray(signs, np.float32) if amounts else np.zeros((1, 1), np.float32),
        np.zeros((1, LANES), np.float32) if means is None else _padded(means),
        received_amounts,
    )
    return (received_amounts if amounts else received)[:, :size]


def _padded(x: np.ndarray) -> np.ndarray:
    """Return float32 rows padded to whole vectors, none of which crosses a cache line."""
    width = x.shape[-1]
    rows = aligned((*x.shape[:-1], -(-width // LANES) * LANES), np.float32)
    rows[..., :width] = x
    return rows


@compiled(
    (
        argument(int8, 3),
        argument(float32, 3),
        float32[:, :, ::1],
        float32[:, :, ::1],
        float32[:, :, ::1],
        float32[:, :, ::1],
        float64,
        boolean,
        int32[:, :, ::1],
        int32[:, :, ::1],
        float32[:, ::1],
        float64[:, ::1],
        int32[:, ::1],
        float32[::1],
        int32[::1],
        float64[::1],
        boolean,
        argument(float32, 3),
        float32[:, :, ::1],
        float32[:, :, ::1],
        float32[:, :, ::1],
        float32[:, :, ::1],
    )
)
def _product_sum(
    signs,
    y,
    a,
    da,
    b,
    db,
    theta,
    by_sum,
    to_a,
    to_b,
    values,
    moments,
    held,
    single,
    whole,
    double,
    amounts,
    multipliers,
    middle_a,
    middle_b,
    amounts_a,
    amounts_b,
):
    groups, rows, columns = y.shape
    stride = a.shape[2]
    together = values.shape[0] - 1
    work = workspace(single, whole, double)
    v, all_signs = pointer(values), pointer(signs)
    totals, thresholds = pointer(moments), at(pointer(moments), TOGETHER)
    waiting, places = pointer(held), at(pointer(held), TOGETHER)
    for group in range(groups):
        for m in range(rows):
            row = (group * rows + m) * stride
            n = 0
            while n < columns:
                count = 0
                while n < columns and count < together:
                    neuron = (group * rows + m) * columns + n
                    if read(all_signs, neuron) != 0:
                        column = (group * columns + n) * stride
                        local = at(v, count * 2 * stride)
                        total, magnitudes = _form_products(
                            at(pointer(a), row),
                            at(pointer(da), row),
                            at(pointer(b), column),
                            at(pointer(db), column),
                            stride,
                            local,
                        )
                        threshold = theta * abs(total if by_sum else np.float64(y[group, m, n]))
                        if not (threshold > 0 and abs(total) < threshold):
                            write(totals, count, total)
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
                    bound, ties = excluded_bound(
                        local,
                        2 * stride,
                        read(thresholds, j),
                        np.int64(read(waiting, j)),
                        work,
                        j,
                    )
                    place = np.int64(read(places, j))
                    neuron = (group * rows + m) * columns + place
                    column = (group * columns + place) * stride
                    second = at(local, stride)
                    if amounts:
                        factor = read(pointer(multipliers), neuron)
                        weights, to = at(pointer(middle_a), row), at(pointer(amounts_b), column)
                        ties = give_amounts(second, stride, bound, ties, factor, weights, to)
                        weights, to = at(pointer(middle_b), column), at(pointer(amounts_a), row)
                        give_amounts(local, stride, bound, ties, factor, weights, to)
                    else:
                        sign = np.int32(read(all_signs, neuron))
                        to = at(pointer(to_b), column)
                        ties = _give(second, stride, bound, ties, sign, to)
                        _give(local, stride, bound, ties, sign, at(pointer(to_a), row))


@compiled(
    (
        argument(int8, 2),
        float32[:, ::1],
        float32[:, ::1],
        float64,
        boolean,
        int32[:, ::1],
        float32[:, ::1],
        float64[:, ::1],
        int32[:, ::1],
        float32[::1],
        int32[::1],
        float64[::1],
        boolean,
        argument(float32, 2),
        float32[:, ::1],
        float32[:, ::1],
    )
)
def _softmax(
    signs,
    y,
    delta,
    theta,
    by_sum,
    received,
    values,
    moments,
    held,
    single,
    whole,
    double,
    amounts,
    multipliers,
    means,
    received_amounts,
):
    rows, stride = y.shape
    entries = signs.shape[1]
    together = values.shape[0] - 1
    work = workspace(single, whole, double)
    v = pointer(values)
    thresholds = at(pointer(moments), TOGETHER)
    waiting, places = pointer(held), at(pointer(held), TOGETHER)
    for row in range(rows):
        total_mean = np.float32(1e-30)
        for k in range(entries if amounts else 0):
            total_mean += means[row, k]
        i = 0
        while i < entries:
            count = 0
            while i < entries and count < together:
                if signs[row, i] != 0:
                    local = at(v, count * stride)
                    total, magnitudes = _form_softmax(
                        at(pointer(y), row * stride),
                        at(pointer(delta), row * stride),
                        i,
                        stride,
                        local,
                    )
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
                bound, ties = excluded_bound(
                    local, stride, read(thresholds, j), np.int64(read(waiting, j)), work, j
                )
                place = np.int64(read(places, j))
                if amounts:
                    # The row's means are multiplied by -q_i / Σ q, and the own one by 1 more.
                    own = multipliers[row, place] * means[row, place]
                    to = at(pointer(received_amounts), row * stride)
                    q = at(pointer(means), row * stride)
                    give_amounts(local, stride, bound, ties, -own / total_mean, q, to)
                    size = abs(read(local, place))
                    later = 0
                    for k in range(place + 1, stride):
                        later += np.int64(abs(read(local, k)) == bound)
                    if size > bound or (size == bound and bound > 0 and later < ties):
                        write(to, place, read(to, place) + own)
                else:
                    sign = np.int32(signs[row, place])
                    _give(local, stride, bound, ties, sign, at(pointer(received), row * stride))


@inlined
def _form_products(a, da, b, db, size, v):
    """Write the local values Δa·b, then a·Δb; return their sum and the sum of their magnitudes."""
    total, magnitudes = splat(0.0), splat(np.float32(0))
    for i in range(0, size, LANES):
        value = load(da, i) * load(b, i)
        store(v, i, value)
        total = total + widen(value)
        magnitudes = magnitudes + magnitude(value)
    for i in range(0, size, LANES):
        value = load(a, i) * load(db, i)
        store(v, size + i, value)
        total = total + widen(value)
        magnitudes = magnitudes + magnitude(value)
    return lane_sum(total), lane_sum(magnitudes)


@inlined
def _form_softmax(y, delta, i, size, v):
    """Write the local values y_i · (δ_ij − y_j) · Δ_j; returns the same as `_form_products`.

    1 − y_i is computed as the sum of the others: near 1, the difference would only be rounding.
    """
    own = read(y, i)
    factor, others = splat(-own), splat(0.0)
    write(y, i, np.float32(0))
    for k in range(0, size, LANES):
        probabilities = load(y, k)
        store(v, k, factor * probabilities * load(delta, k))
        others = others + widen(probabilities)
    write(y, i, own)
    write(v, i, own * np.float32(lane_sum(others)) * read(delta, i))
    total, magnitudes = splat(0.0), splat(np.float32(0))
    for k in range(0, size, LANES):
        value = load(v, k)
        total = total + widen(value)
        magnitudes = magnitudes + magnitude(value)
    return lane_sum(total), lane_sum(magnitudes)


@inlined
def _give(v, size, bound, ties, sign, received):
    """Add signs to the inputs of the kept values; return the number of ties that are left."""
    above, below = splat(bound), splat(-bound)
    plus, none = splat(sign), splat(np.int32(0))
    for i in range(0, size, LANES):
        value = load(v, i)
        given = where(value > above, plus, none) - where(value < below, plus, none)
        store(received, i, load(received, i) + given)
    i = size
    while i > 0 and ties > 0 and bound > 0:
        i -= 1
        value = read(v, i)
        if abs(value) == bound:
            write(received, i, read(received, i) + (sign if value > 0 else -sign))
            ties -= 1
    return ties
