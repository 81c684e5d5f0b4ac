"""Which inputs of a sum are kept: the exclusion rule without sorting what is kept.

The rule orders the local values v by magnitude, ascending, and excludes the longest
prefix whose sum is below the threshold in magnitude. Seen from the other end: take
values away from the whole sum, the largest first, until what is left is below the
threshold; those taken away are kept. Only their set matters, not their order, so

1. values are collected in bands of falling magnitude, the first holding some seventh of
   them, which is where the search mostly ends;
2. a band is split into buckets of magnitude; the sums of a bucket's positive and of its
   negative values bound what is left while it is taken away, so that most buckets are
   taken whole;
3. only a bucket in which the sum can fall below the threshold is sorted and scanned.

A short sum takes its largest value again and again instead, each in one vector pass.

Nothing is allocated, and buffers are passed one by one and whole, with offsets: a view of
an array or a tuple of arrays costs some 20 to 100 ns in compiled code too, which counts
when a sum has 27 values. benchmarks/README.md says what else was tried.

Numba's cache on disk looks at the file of the caller only: after a change here, touch
`sums.py`, or the old code runs on.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled

_MOST_BUCKETS = 256
_SMALL = 24
# Sums up to this length are taken one largest value at a time.
_SHORT = 64
# Values are padded with zeros to whole vector registers: a remainder is slow.
_PAD = 32
_SIGN_BIT = np.int32(-(2**31))
# Collecting starts at this multiple of the mean magnitude, and halves it band by band.
_FIRST_BAND = np.float32(2)
_BANDS = 4


def workspace(size: int) -> tuple[np.ndarray, ...]:
    """Return the buffers that `excluded` needs for sums of up to `size` values.

    In order: the local values (float32, zeros at the end), the same memory as int32;
    members of a band (index, then magnitude); all members in the order in which they are
    taken; for each bucket its end and its negative and positive sum.
    """
    v = np.zeros(-(-size // _PAD) * _PAD, np.float32)
    return (
        *(v, v.view(np.int32)),
        np.empty(size + 1, np.int32),
        np.empty(size + 1, np.float32),
        np.empty(size + 1, np.int32),
        np.empty(_MOST_BUCKETS + 1, np.int32),
        np.empty((_MOST_BUCKETS, 2), np.float64),
    )


@compiled()
def excluded(v, bits, n, total, mean_magnitude, threshold, members, magnitudes, order, ends, sums):
    """Find the exclusion point of one sum.

    Args:
        v: Local values, float32; the first `n` count, the others are 0.
        bits: The same memory as int32.
        n: Number of values.
        total: Their sum, float64, with |total| >= threshold > 0.
        mean_magnitude: Mean of |v|, float32; only the speed depends on it.
        threshold: θ·|y|, float64.
        members: This and the following are the other buffers of `workspace`.
        magnitudes: See there.
        order: See there; holds the result.
        ends: See there.
        sums: See there.

    Returns:
        (whole, begin, end): the values kept are those with indices `order[:whole]` and
        `order[begin:end]`; all if `whole` is negative.
    """
    if n <= _SHORT:
        count, cut = _largest_taken(bits, v.size, total, threshold, magnitudes)
        if _list_above(bits, n, cut, order) == count:
            return count, 0, 0
        # Equal magnitudes, which are taken by position: the way of the long sums.
    left = total
    whole = 0
    upper = np.float32(np.inf)
    lower = _FIRST_BAND * mean_magnitude
    for band in range(_BANDS):
        if band == _BANDS - 1:
            lower = np.float32(0)
        count = _collect(v, n, lower, upper, members, magnitudes)
        left, crossing = _take_band(
            v, count, lower, whole, left, threshold, members, magnitudes, order, ends, sums
        )
        if crossing >= 0:
            return whole, crossing, whole + count
        whole += count
        if whole == n:
            break
        upper = lower
        lower *= np.float32(0.5)
    return -1, 0, 0


@compiled()
def _largest_taken(bits, size, left, threshold, scratch):
    """Take the largest value away until what is left is below the threshold.

    Returns:
        (number of values taken, the least magnitude of those taken, as bits).
    """
    as_bits = scratch.view(np.int32)
    cut = np.int32(2**31 - 1)
    taken = 0
    while True:
        positive, negative = _next_below(bits, size, cut)
        cut = max(positive, negative)
        if cut == 0:  # All but zeros, which receive nothing, are taken.
            return taken, np.int32(1)
        as_bits[0] = cut
        value = np.float64(scratch[0])
        left -= value if positive > negative else -value
        taken += 1
        if abs(left) < threshold:
            return taken, cut


@compiled()
def _next_below(bits, size, cut):
    """Return the largest positive and the largest negative magnitude below `cut`, as bits.

    The bits of positive floats are ordered as the floats are, and maxima of whole numbers
    are what the compiler makes vector code of.
    """
    zero = np.int32(0)
    positive = zero
    negative = zero
    for i in range(size):
        p = bits[i]
        n = p ^ _SIGN_BIT
        positive = max(positive, p if p < cut else zero)
        negative = max(negative, n if n < cut else zero)
    return positive, negative


@compiled()
def _list_above(bits, n, cut, order):
    """List the values of at least a magnitude; return their number."""
    count = 0
    for i in range(n):
        order[count] = i
        count += np.int64((bits[i] & ~_SIGN_BIT) >= cut)
    return count


@compiled()
def _collect(v, n, lower, upper, members, magnitudes):
    """Gather the values of a band, without branches."""
    count = 0
    for i in range(n):
        magnitude = abs(v[i])
        members[count] = i
        magnitudes[count] = magnitude
        count += np.int64(magnitude >= lower) & np.int64(magnitude < upper)
    return count


@compiled()
def _take_band(v, count, lower, whole, left, threshold, members, magnitudes, order, ends, sums):
    """Take away a band's values, the largest first, writing their order after `whole`.

    Returns:
        (what is left, where in the order the taking stops, or -1 if the band is used up).
    """
    if count <= _SMALL:
        for k in range(count):
            order[whole + k] = members[k]
        return _scan(v, order, whole, whole + count, left, threshold)

    buckets = _bucket_count(count)
    highest = np.float32(0)
    for k in range(count):
        highest = max(highest, magnitudes[k])
    # A scale too large for float32 means that all magnitudes are nearly equal.
    spread = highest - lower
    scale = np.float32(0)
    if spread > highest * np.float32(1e-6):
        scale = np.float32(buckets - 1) / spread

    ends[0] = whole
    for bucket in range(buckets):
        ends[bucket + 1] = 0
        sums[bucket, 0] = 0
        sums[bucket, 1] = 0
    for k in range(count):
        bucket = np.int64((magnitudes[k] - lower) * scale)
        value = v[members[k]]
        ends[bucket + 1] += 1
        sums[bucket, np.int64(value > 0)] += np.float64(value)
    for bucket in range(buckets):
        ends[bucket + 1] += ends[bucket]
    # A stable counting sort; afterwards ends[b] is the end of bucket b.
    for k in range(count):
        bucket = np.int64((magnitudes[k] - lower) * scale)
        order[ends[bucket]] = members[k]
        ends[bucket] += 1

    for bucket in range(buckets - 1, -1, -1):
        begin = ends[bucket - 1] if bucket else whole
        if begin == ends[bucket]:
            continue
        negative, positive = sums[bucket, 0], sums[bucket, 1]
        if left - positive >= threshold or left - negative <= -threshold:
            left -= positive + negative
            continue
        left, crossing = _scan(v, order, begin, ends[bucket], left, threshold)
        if crossing >= 0:
            return left, crossing
    return left, -1


@compiled()
def _bucket_count(count):
    """Return a power of two, about a quarter of `count`."""
    buckets = 16
    while buckets * 4 < count and buckets < _MOST_BUCKETS:
        buckets *= 2
    return buckets


@compiled()
def _scan(v, order, begin, end, left, threshold):
    """Sort members by magnitude, then position, and take them away one at a time."""
    if end - begin > 4 * _SMALL:
        part = np.abs(v[order[begin:end]])
        order[begin:end] = order[begin:end][np.argsort(part, kind="mergesort")]
    else:
        for k in range(begin + 1, end):
            i = order[k]
            magnitude = abs(v[i])
            place = k
            while place > begin and abs(v[order[place - 1]]) > magnitude:
                order[place] = order[place - 1]
                place -= 1
            order[place] = i
    for k in range(end - 1, begin - 1, -1):
        left -= np.float64(v[order[k]])
        if abs(left) < threshold:
            return left, k
    return left, -1
