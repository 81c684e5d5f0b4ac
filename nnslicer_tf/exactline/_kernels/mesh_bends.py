"""Compiled loops that find the bends of the values on a mesh.

Face f, which is convex, has the corners `start[f]` to `start[f + 1]` of `loop`, counter-clockwise.
A *group* is a maximum of affine values (*taps*) and a constant (*floor*): a ReLU is the maximum of
one value and 0. It bends where another tap becomes the largest. A vertex's *winners* are the taps
within the tolerance of the largest, one bit each, the floor last; by convexity, a group does not
bend in a face if one tap wins at all its corners. Groups are numbered
(position · channels + channel) · floors + index of the floor.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf.exactline._kernels.lines import with_room

_ONE = np.uint64(1)
_NONE = np.uint64(0)


@compiled()
def active_groups(values, taps, floors, tolerance):
    """Return the groups in which no tap wins at all vertices."""
    positions, vertices, width = values.shape
    channels, kinds = width // taps, len(floors)
    found = np.empty(64, np.int64)
    at = 0
    largest, common = np.empty(channels), np.empty(channels, np.uint64)
    least, most = np.empty(channels), np.empty(channels)
    for p in range(positions):
        if taps == 1:
            least[:], most[:] = np.inf, -np.inf
            for v in range(vertices):
                row = values[p, v]
                for c in range(channels):
                    least[c] = min(least[c], row[c])
                    most[c] = max(most[c], row[c])
        else:
            common[:] = ~_NONE
            for v in range(vertices):
                row = values[p, v]
                largest[:] = floors[0]
                for t in range(taps):
                    for c in range(channels):
                        largest[c] = max(largest[c], row[t * channels + c])
                for c in range(channels):
                    wins = _NONE
                    bound = largest[c] - tolerance
                    for t in range(taps):
                        wins |= np.uint64(row[t * channels + c] >= bound) << np.uint64(t)
                    if floors[0] >= bound:
                        wins |= _ONE << np.uint64(taps)
                    common[c] &= wins
        for c in range(channels):
            for k in range(kinds):
                if taps == 1:
                    bends = least[c] < floors[k] - tolerance and most[c] > floors[k] + tolerance
                else:
                    bends = common[c] == _NONE
                if bends:
                    if at == len(found):
                        found = with_room(found, at)
                    found[at] = (p * channels + c) * kinds + k
                    at += 1
    return found[:at].copy()


@compiled()
def group_values(values, taps, kinds, groups):
    """Return the taps of some groups, `(vertices, taps · groups)`, ordered by tap."""
    vertices, channels = values.shape[1], values.shape[2] // taps
    out = np.empty((vertices, taps * len(groups)))
    for v in range(vertices):
        for t in range(taps):
            for j in range(len(groups)):
                p, c = groups[j] // (kinds * channels), groups[j] // kinds % channels
                out[v, t * len(groups) + j] = values[p, v, t * channels + c]
    return out


@compiled()
def bending_groups(search, start, loop, winners):
    """Return, for each face, the waiting groups that bend in it."""
    values, taps, waiting = search.values.values, search.taps, search.waiting
    vertices, size = values.shape[0], values.shape[1] // taps
    one, none = winners.dtype.type(1), winners.dtype.type(0)
    for v in range(vertices):
        row = values[v]
        for i in range(len(waiting)):
            j = waiting[i]
            floor = search.floors[j]
            largest = floor
            for t in range(taps):
                largest = max(largest, row[t * size + j])
            least = largest - search.tolerance
            wins = none
            for t in range(taps):
                if row[t * size + j] >= least:
                    wins |= one << winners.dtype.type(t)
            if floor >= least:
                wins |= one << winners.dtype.type(taps)
            winners[v, i] = wins
    faces = len(start) - 1
    counts = np.zeros(faces + 1, np.int64)
    found = np.empty(64, np.int64)
    common = np.empty(len(waiting), winners.dtype)
    at = 0
    for f in range(faces):
        common[:] = ~none
        for c in range(start[f], start[f + 1]):
            also = winners[loop[c]]
            for g in range(len(waiting)):
                common[g] &= also[g]
        for g in range(len(waiting)):
            if common[g] == 0:
                if at == len(found):
                    found = with_room(found, at)
                found[at] = g
                at += 1
        counts[f + 1] = at
    return counts, found[:at].copy()
