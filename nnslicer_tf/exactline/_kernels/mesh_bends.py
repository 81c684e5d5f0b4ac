"""Compiled loops that find the bends of the values on a mesh.

A mesh has vertices and convex faces. Face f has the corners `start[f]` to `start[f + 1]` of
`loop`, counter-clockwise. No loop holds the GIL.
A *group* is a maximum of some affine values (*taps*) and a constant (*floor*): a ReLU is the
maximum of one value and 0. It bends where another tap becomes the largest. A vertex's
*winners* are the taps within the tolerance of the largest, one bit each, the floor last; by
convexity, a group does not bend in a face if one tap wins at all its corners.
"""

from collections import namedtuple

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf.exactline._kernels.mesh_keys import grown

# The groups of a search: the taps of all groups `(vertices, taps · all groups)`; number of taps;
# `(groups,)` those to consider; `(all groups,)` numbers from which keys are made, and constants,
# -inf for none; values that differ by at most the tolerance are equal.
Maxima = namedtuple("Maxima", ["values", "taps", "columns", "names", "floors", "tolerance"])
# The groups that bend in each face: starts of the faces, groups, the group before which to stop.
Bending = namedtuple("Bending", ["counts", "groups", "stop"])

_ONE = np.uint64(1)
_NONE = np.uint64(0)


@compiled()
def active_groups(values, taps, floors, tolerance):
    """Return the groups in which no tap wins at all vertices.

    Args:
        values: `(positions, vertices, taps · channels)`.
        taps: Number of taps.
        floors: `(floors,)`: each channel has one group per floor; -inf for no floor.
        tolerance: Values this close to the largest win too.

    Returns:
        `(groups,)`: (position · channels + channel) · floors + index of the floor.
    """
    positions, vertices, width = values.shape
    channels, kinds = width // taps, len(floors)
    found = np.empty(64, np.int64)
    at = 0
    largest, common = np.empty(channels), np.empty(channels, np.uint64)
    least, most = np.empty(channels), np.empty(channels)
    for p in range(positions):
        if taps == 1:
            least[:], most[:] = values[p, 0], values[p, 0]
            for v in range(1, vertices):
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
                        found = grown(found, at)
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
def winners(values, taps, columns, floors, tolerance, out):
    """Write the winners of some groups at every vertex.

    Args:
        values: `(vertices, taps · all groups)`.
        taps: Number of taps.
        columns: `(groups,)` the groups to consider.
        floors: `(all groups,)`; -inf for no floor.
        tolerance: Values this close to the largest win too.
        out: `(vertices, groups)` unsigned integers.
    """
    vertices, size = values.shape[0], values.shape[1] // taps
    one, none = out.dtype.type(1), out.dtype.type(0)
    for v in range(vertices):
        row = values[v]
        for i in range(len(columns)):
            j = columns[i]
            floor = floors[j]
            largest = floor
            for t in range(taps):
                largest = max(largest, row[t * size + j])
            least = largest - tolerance
            found = none
            for t in range(taps):
                if row[t * size + j] >= least:
                    found |= one << out.dtype.type(t)
            if floor >= least:
                found |= one << out.dtype.type(taps)
            out[v, i] = found


@compiled()
def bending_groups(sets, start, loop):
    """Return, for each face, the groups (columns of `sets`) that bend in it: (starts, groups)."""
    faces, size = len(start) - 1, sets.shape[1]
    counts = np.zeros(faces + 1, np.int64)
    found = np.empty(64, np.int64)
    common = np.empty(size, sets.dtype)
    at = 0
    for f in range(faces):
        common[:] = sets[loop[start[f]]]
        for c in range(start[f] + 1, start[f + 1]):
            row = sets[loop[c]]
            for g in range(size):
                common[g] &= row[g]
        for g in range(size):
            if common[g] == 0:
                if at == len(found):
                    found = grown(found, at)
                found[at] = g
                at += 1
        counts[f + 1] = at
    return counts, found[:at].copy()


@compiled()
def last_group(counts, groups, order, size, most):
    """Return the group before which to stop, so that at most about `most` vertices are added.

    Args:
        counts: Starts of the faces in `groups`.
        groups: The groups that bend in each face.
        order: Their stable order.
        size: Total number of groups.
        most: Number of vertices; at least one group is always cut.
    """
    face = np.empty(len(groups), np.int64)
    for f in range(len(counts) - 1):
        face[counts[f] : counts[f + 1]] = f
    cuts = np.zeros(len(counts) - 1, np.int64)
    expected = 0.0
    for i in order:
        if expected > most and groups[i] > groups[order[0]]:
            return groups[i]
        expected += 1 + cuts[face[i]] / 2
        cuts[face[i]] += 1
    return size
