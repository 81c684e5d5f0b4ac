"""Which inputs of a sum are kept: the exclusion rule without sorting what is kept.

The rule orders the local values v by magnitude, ascending, and excludes the longest
prefix whose sum is below the threshold in magnitude. Seen from the other end: take
values away from the whole sum, the largest first, until what is left is below the
threshold; those taken away are kept. Only their set matters, not their order, so

1. values are collected in bands of falling magnitude, the first holding some tenth of
   them, which is where the search nearly always ends;
2. a band is split into buckets of magnitude; the sums of a bucket's positive and of its
   negative values bound what is left while it is taken away, so that most buckets are
   taken whole;
3. only a bucket in which the sum can fall below the threshold is sorted and scanned.

Cost per value: one multiplication pass, one collecting pass, and a few nanoseconds for
the tenth that is collected. Nothing is allocated.
"""

import numpy as np
from numba import njit

__all__ = ["ALL_KEPT", "NONE_KEPT", "excluded_up_to", "workspace"]

# Bounds that no magnitude reaches, or that every magnitude exceeds.
NONE_KEPT = np.float32(np.inf)
ALL_KEPT = np.float32(-1)

_BUCKETS = 64
_SMALL = 16
# Collecting starts at this multiple of the mean magnitude, and halves it band by band.
_FIRST_BAND = np.float32(2)
_BANDS = 4


def workspace(size: int) -> tuple[np.ndarray, ...]:
    """Return the buffers that `excluded_up_to` needs for sums of up to `size` values."""
    return (
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(_BUCKETS + 1, np.int32),
        np.empty(_BUCKETS, np.float64),
        np.empty(_BUCKETS, np.float64),
    )


@njit(cache=True, nogil=True)
def excluded_up_to(v, total, mean_magnitude, threshold, space):
    """Find the exclusion point of one sum.

    Args:
        v: Local values `(n,)` float32.
        total: Their sum, float64, with |total| >= threshold > 0.
        mean_magnitude: Mean of |v|, float32; only the speed depends on it.
        threshold: θ·|y|, float64.
        space: The buffers of `workspace`.

    Returns:
        (bound, position, collected): value i is kept if |v_i| > bound, or |v_i| = bound
        and i >= position. The first `collected` entries of `space[0]` hold the indices
        of all values that can be kept; -1 if nothing was collected and all are kept.
    """
    members = space[0]
    n = v.size
    left = total
    start = 0
    upper = NONE_KEPT
    lower = _FIRST_BAND * mean_magnitude
    for band in range(_BANDS):
        if band == _BANDS - 1:
            lower = np.float32(0)
        end = start
        for i in range(n):
            magnitude = abs(v[i])
            members[end] = i
            end += (magnitude >= lower) & (magnitude < upper)
            if end == n:
                break
        left, bound, position = _scan_band(v, start, end, left, threshold, space)
        if bound >= 0:
            return bound, position, end
        start = end
        upper = lower
        lower *= np.float32(0.5)
        if end == n:
            break
    return ALL_KEPT, 0, -1


@njit(cache=True, nogil=True)
def _scan_band(v, start, end, left, threshold, space):
    """Take away a band's values, the largest first; return (left, bound, position).

    The bound is negative if the band is used up before `left` falls below the threshold.
    """
    members, ordered, first, positive, negative = space
    count = end - start
    if count <= _SMALL:
        ordered[:count] = members[start:end]
        return _scan_sorted(v, ordered, 0, count, left, threshold)

    low = np.float32(np.inf)
    high = np.float32(0)
    for k in range(start, end):
        magnitude = abs(v[members[k]])
        low = min(low, magnitude)
        high = max(high, magnitude)
    scale = np.float32(_BUCKETS - 1) / (high - low) if high > low else np.float32(0)
    if not np.isfinite(scale):
        scale = np.float32(0)

    first[:] = 0
    positive[:] = 0
    negative[:] = 0
    for k in range(start, end):
        value = v[members[k]]
        bucket = np.int32((abs(value) - low) * scale)
        first[bucket + 1] += 1
        if value > 0:
            positive[bucket] += value
        else:
            negative[bucket] += value
    for bucket in range(_BUCKETS):
        first[bucket + 1] += first[bucket]

    # A stable counting sort of the members by bucket, in the order of their index.
    for k in range(start, end):
        i = members[k]
        bucket = np.int32((abs(v[i]) - low) * scale)
        ordered[first[bucket]] = i
        first[bucket] += 1
    # first[b] is now the end of bucket b, so the end of the one below is its start.
    for bucket in range(_BUCKETS - 1, -1, -1):
        begin = first[bucket - 1] if bucket else 0
        if begin == first[bucket]:
            continue
        lowest = left - positive[bucket]
        highest = left - negative[bucket]
        if lowest >= threshold or highest <= -threshold:
            left -= positive[bucket] + negative[bucket]
            continue
        left, bound, position = _scan_sorted(v, ordered, begin, first[bucket], left, threshold)
        if bound >= 0:
            return left, bound, position
    return left, ALL_KEPT, 0


@njit(cache=True, nogil=True)
def _scan_sorted(v, ordered, begin, end, left, threshold):
    """Sort members by magnitude, then position, and take them away one at a time."""
    if end - begin > 4 * _SMALL:
        part = np.empty(end - begin, np.float32)
        for k in range(end - begin):
            part[k] = abs(v[ordered[begin + k]])
        order = np.argsort(part, kind="mergesort")
        ordered[begin:end] = ordered[begin:end][order]
    else:
        for k in range(begin + 1, end):
            i = ordered[k]
            magnitude = abs(v[i])
            place = k
            while place > begin and abs(v[ordered[place - 1]]) > magnitude:
                ordered[place] = ordered[place - 1]
                place -= 1
            ordered[place] = i
    for k in range(end - 1, begin - 1, -1):
        i = ordered[k]
        left -= np.float64(v[i])
        if abs(left) < threshold:
            return left, abs(v[i]), i
    return left, ALL_KEPT, 0
