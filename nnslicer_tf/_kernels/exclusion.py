"""The exclusion rule: finds which values of a sum are kept, from sums above a few bounds.

The rule orders the local values v by magnitude, ascending, and excludes the longest prefix whose
sum is below the threshold in magnitude. Equivalently, it keeps values, largest first, until the
remainder is below the threshold. So only one magnitude has to be found, the *bound*:

1. One pass sums the values above each of four magnitudes, and their magnitudes. The bound cannot
   lie between two of them if neither the positive nor the negative values there alone bring the
   remainder below the threshold. These float32 sums skip only where rounding cannot matter.
2. The values in the highest remaining interval are collected. If they are few, float64 prefix sums
   come from comparing all pairs, 16 at a time, without sorting; if many, a new pass divides them.
3. If the interval does not contain the bound, the next one is collected.

A sum has `size` local values v, float32, zero-padded to a whole vector. `total` is their sum in
float64, `magnitudes` that of their magnitudes in float32, and the threshold is θ·|y|. Everything is
inlined into one kernel, and works on pointers (see `vectors`) without allocation.
benchmarks/kernels.md lists rejected alternatives.
"""

from collections import namedtuple

import numpy as np

from nnslicer_tf._kernels.compiled import inlined
from nnslicer_tf._kernels.vectors import (
    LANES,
    at,
    bits,
    compress,
    count,
    float_of_bits,
    lane_max,
    lane_sum,
    lanes,
    larger,
    last,
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

# A band with up to this many values is solved directly.
_FEW = 32
# From this depth on, intervals are divided evenly by their bits, which always terminates.
_BY_BITS = 6
# Size of the stack of waiting intervals: at most four from each depth; the bits are exhausted
# after at most 20 further depths.
_INTERVALS = 4 * (_BY_BITS + 22)

_LEAST = np.float32(1e-45)
_MOST = np.float32(np.inf)
_ROUNDING = np.float32(2**-23)

_FEW_PADDED = -(-_FEW // LANES) * LANES

# Pointers to the buffers of `excluded_bound`: an interval's values; for sums of few values, the
# bits of the magnitudes, the values in float64, and markers that tell later positions from earlier
# ones; and a stack of pending intervals: lower, upper, depth.
Workspace = namedtuple("Workspace", ["band", "keys", "wide", "later", "stack"])


def buffers(size: int) -> dict[str, np.ndarray]:
    """Return the buffers of a `Workspace` for sums of up to `size` values."""
    whole = np.zeros(3 * _FEW_PADDED + LANES, np.int32)
    whole[2 * _FEW_PADDED :] = 1
    single = np.zeros(-(-size // LANES) * LANES + LANES + 3 * _INTERVALS, np.float32)
    return {"single": single, "whole": whole, "double": np.zeros(_FEW_PADDED)}


@inlined
def give(v, size, bound, ties, sign, received, synapses):
    """Add signs to the inputs and synapses of the values that are kept."""
    above, below = splat(bound), splat(-bound)
    plus, none = splat(sign), splat(np.int32(0))
    for i in range(0, size, LANES):
        value = load(v, i)
        given = where(value > above, plus, none) - where(value < below, plus, none)
        store(received, i, load(received, i) + given)
        store(synapses, i, load(synapses, i) + given)
    i = size
    while i > 0 and ties > 0 and bound > 0:
        i -= 1
        value = read(v, i)
        if abs(value) == bound:
            given = sign if value > 0 else -sign
            write(received, i, read(received, i) + given)
            write(synapses, i, read(synapses, i) + given)
            ties -= 1


@inlined
def workspace(single, whole, double):
    """Return the `Workspace` in the memory that `buffers` allocated."""
    single, whole, double = pointer(single), pointer(whole), pointer(double)
    return Workspace(at(single, 3 * _INTERVALS), whole, double, at(whole, _FEW_PADDED), single)


@inlined
def excluded_bound(values, size, total, magnitudes, threshold, work):
    """Return (bound, ties): values above it, and the last `ties` of those equal to it, are kept."""
    if not threshold > 0:
        return np.float32(0), 0
    stack, f = work.stack, np.float32
    # Not a literal, for which Numba would compile the called functions once more.
    waiting = np.int64(0)
    if size <= _FEW:
        waiting = _push(stack, waiting, _LEAST, _MOST, f(0), True)
    else:  # most bounds lie between one and eight times the mean magnitude
        mean = max(magnitudes / f(size), _LEAST)
        bounds = (f(6) * mean, f(3) * mean, f(1.5) * mean, f(0.75) * mean)
        part = (total, f(total), magnitudes, threshold)
        waiting = _divide(values, size, bounds, (_LEAST, _MOST, f(0)), part, stack, waiting)
    while waiting > 0:
        waiting -= 1
        lower = read(stack, 3 * waiting)
        upper = read(stack, 3 * waiting + 1)
        depth = read(stack, 3 * waiting + 2)
        band, base, among = values, 0.0, size
        if depth > 0:
            band = work.band
            among, base = _collect(values, size, lower, upper, band)
        if among <= _FEW:
            key, ties = _last_below(band, among, base, threshold, work)
            if key >= 0:
                return float_of_bits(key), ties
            if abs(base) < threshold:
                return float_of_bits(bits(lower) - np.int32(1)), 0  # the next smaller number
            continue
        sums, sizes = splat(0.0), splat(np.float32(0))
        for i in range(0, among, LANES):
            v = load(band, i)
            sums = sums + widen(v)
            sizes = sizes + magnitude(v)
        left = base + lane_sum(sums)
        if depth < _BY_BITS:
            bounds = _bounds(lower, upper)
        elif bits(upper) - bits(lower) > 1:
            bounds = _bounds_by_bits(lower, upper)
        else:  # equal magnitudes are removed, last position first
            for k in range(among - 1, -1, -1):
                left -= np.float64(read(band, k))
                if abs(left) < threshold:
                    return lower, among - k
            continue
        part = (left, np.float32(left - base), lane_sum(sizes), threshold)
        waiting = _divide(band, among, bounds, (lower, upper, depth), part, stack, waiting)
    return np.float32(0), 0


@inlined
def _push(stack, waiting, lower, upper, depth, condition):
    """Push an interval onto the stack if a condition holds; return the number waiting."""
    write(stack, 3 * waiting, lower)
    write(stack, 3 * waiting + 1, upper)
    write(stack, 3 * waiting + 2, depth)
    return waiting + np.int64(condition)


@inlined
def _collect(source, size, lower, upper, band):
    """Collect the values with lower <= |v| < upper; return (their number, sum of those below)."""
    low, high, zero = splat(lower), splat(upper), splat(np.float32(0))
    below = splat(0.0)
    found = 0
    for i in range(0, size, LANES):
        v = load(source, i)
        m = magnitude(v)
        inside = (m >= low) & (m < high)
        store(band, found, compress(v, inside))
        below = below + widen(where(m < low, v, zero))
        found += count(inside)
    store(band, found, zero)
    return found, lane_sum(below)


@inlined
def _bounds(lower, upper):
    """Return four magnitudes, descending, that divide an interval."""
    f = np.float32
    if upper == _MOST:
        return f(2.4) * lower, f(1.8) * lower, f(1.4) * lower, f(1.18) * lower
    if lower == _LEAST:
        smallest = max(f(0.15) * upper, lower)
        return f(0.7) * upper, f(0.5) * upper, max(f(0.3) * upper, smallest), smallest
    step = f(0.2) * (upper - lower)
    return lower + f(4) * step, lower + f(3) * step, lower + f(2) * step, lower + step


@inlined
def _bounds_by_bits(lower, upper):
    low = np.int64(bits(lower))
    width = np.int64(bits(upper)) - low
    return (
        float_of_bits(np.int32(low + 4 * width // 5)),
        float_of_bits(np.int32(low + 3 * width // 5)),
        float_of_bits(np.int32(low + 2 * width // 5)),
        float_of_bits(np.int32(low + width // 5)),
    )


@inlined
def _divide(band, size, bounds, interval, part, stack, waiting):
    """Push the parts of an interval that may contain the bound, with the highest on top.

    The interval is (lower, upper, depth). `part` has the sum of the values below `upper`, the sum
    of the band of the interval's values, that of their magnitudes, and the threshold. Returns the
    new number of intervals on the stack.
    """
    b0, b1, b2, b3 = splat(bounds[0]), splat(bounds[1]), splat(bounds[2]), splat(bounds[3])
    s0 = s1 = s2 = s3 = m0 = m1 = m2 = m3 = splat(np.float32(0))
    for i in range(0, size, LANES):
        v = load(band, i)
        m = magnitude(v)
        s0, m0 = where(m >= b0, s0 + v, s0), where(m >= b0, m0 + m, m0)
        s1, m1 = where(m >= b1, s1 + v, s1), where(m >= b1, m1 + m, m1)
        s2, m2 = where(m >= b2, s2 + v, s2), where(m >= b2, m2 + m, m2)
        s3, m3 = where(m >= b3, s3 + v, s3), where(m >= b3, m3 + m, m3)
    above = lane_sum(s0), lane_sum(s1), lane_sum(s2), lane_sum(s3)
    weight = lane_sum(m0), lane_sum(m1), lane_sum(m2), lane_sum(m3)
    lower, upper, depth = interval
    left, total, magnitudes, threshold = part
    # The rounding error of a float32 sum in 16 lanes and a tree is below this share of the
    # magnitudes; each comparison involves two sums.
    error = np.float32(size // LANES + 8) * np.float32(2) * _ROUNDING * magnitudes
    t = threshold + error
    deeper = depth + np.float32(1)
    none = np.float32(0)
    possible = _possible(left, above[3], weight[3], total, magnitudes, t)
    waiting = _push(stack, waiting, lower, bounds[3], deeper, possible)
    possible = _possible(left, above[2], weight[2], above[3], weight[3], t)
    waiting = _push(stack, waiting, bounds[3], bounds[2], deeper, possible)
    possible = _possible(left, above[1], weight[1], above[2], weight[2], t)
    waiting = _push(stack, waiting, bounds[2], bounds[1], deeper, possible)
    possible = _possible(left, above[0], weight[0], above[1], weight[1], t)
    waiting = _push(stack, waiting, bounds[1], bounds[0], deeper, possible)
    possible = _possible(left, none, none, above[0], weight[0], t)
    return _push(stack, waiting, bounds[0], upper, deeper, possible)


@inlined
def _possible(left, above, weight, next_above, next_weight, threshold):
    """Return whether the remainder can fall below the threshold in an interval.

    `above` and `weight` are the sums of values and magnitudes removed before the interval,
    `next_above` and `next_weight` those at its end. A NaN sum rules nothing out.
    """
    taken_negative = 0.5 * np.float64(above - weight)
    taken_positive = 0.5 * np.float64(above + weight)
    least = left - taken_negative - 0.5 * np.float64(next_above + next_weight)
    most = left - taken_positive - 0.5 * np.float64(next_above - next_weight)
    return not ((least >= threshold) | (most <= -threshold))


@inlined
def _last_below(band, size, base, threshold, work):
    """Return (bits of the last magnitude with a prefix sum below the threshold or -1, its ties)."""
    for j in range(0, _FEW_PADDED, LANES):
        v = load(band, j)
        store(work.keys, j, bits(magnitude(v)))
        store(work.wide, j, widen(v))
    # Both halves are interleaved, because each addition waits for the one before.
    keys, more_keys = load(work.keys, 0), load(work.keys, LANES)
    prefix = more_prefix = splat(base)
    for i in range(size):
        key, value = splat(read(work.keys, i)), splat(read(work.wide, i))
        # Equal magnitudes count unless they come later: `later` adds 1 where they count.
        before = key < keys + load(work.later, _FEW_PADDED - i)
        more_before = key < more_keys + load(work.later, _FEW_PADDED - i + LANES)
        prefix = where(before, prefix + value, prefix)
        more_prefix = where(more_before, more_prefix + value, more_prefix)
    none, limit = splat(np.int32(-1)), splat(threshold)
    inside = lanes() < splat(np.int32(size))
    more_inside = lanes() < splat(np.int32(size - LANES))
    below = (magnitude(prefix) < limit) & inside
    more_below = (magnitude(more_prefix) < limit) & more_inside
    best = lane_max(larger(where(below, keys, none), where(more_below, more_keys, none)))
    ties = 0
    if best >= 0:
        same, more_same = keys == splat(best), more_keys == splat(best)
        position = np.int32(last(below & same))
        more_position = np.int32(last(more_below & more_same))
        if more_position >= 0:
            position = np.int32(LANES)
        follows = (lanes() > splat(position)) & inside
        more_follows = (lanes() > splat(more_position)) & more_inside
        ties = count(same & follows) + count(more_same & more_follows)
    return best, ties
