"""Compiled loops over the edges of a mesh, and the vertices where bends cross them.

Groups, taps and winners are those of `mesh_bends`.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf.exactline._kernels.mesh_keys import grown, hash_pair

_ONE = np.uint64(1)


@compiled()
def find_edges(start, loop, vertices):
    """Return the edge that begins at every corner, its vertices, and one of its faces.

    Returns:
        `(corners,)` indices of edges, `(edges, 2)` vertices, `(edges,)` faces.
    """
    size = 64
    while size < 2 * len(loop):
        size *= 2
    table = np.full(size, -1, np.int64)
    edge_of = np.empty(len(loop), np.int64)
    ends = np.empty((len(loop), 2), np.int64)
    face = np.empty(len(loop), np.int64)
    count = 0
    for f in range(len(start) - 1):
        for c in range(start[f], start[f + 1]):
            after = c + 1 if c + 1 < start[f + 1] else start[f]
            a, b = min(loop[c], loop[after]), max(loop[c], loop[after])
            place = np.int64(hash_pair(np.uint64(a), np.uint64(b)) & np.uint64(size - 1))
            while table[place] >= 0:
                e = table[place]
                if ends[e, 0] == a and ends[e, 1] == b:
                    break
                place = (place + 1) & (size - 1)
            if table[place] < 0:
                table[place] = count
                ends[count, 0], ends[count, 1] = a, b
                face[count] = f
                count += 1
            edge_of[c] = table[place]
    return edge_of, ends[:count].copy(), face[:count].copy()


@compiled()
def take_overs(begin, end, floor, first, last, places, before, after):
    """Follow a maximum along an edge, and write where it changes to another tap, and to which.

    The maximum of affine functions is convex: its slope only grows.

    Args:
        begin: `(taps,)` values at the beginning.
        end: `(taps,)` values at the end.
        floor: The constant; -inf for none.
        first: Winners at the beginning.
        last: Winners at the end; no tap wins at both.
        places: Output: positions on the edge in [0, 1], ascending.
        before: Output: tap before each.
        after: Output: tap after each.
    """
    taps = len(begin)
    now, slope = -1, -np.inf
    for t in range(taps + 1):
        if t == taps and floor == -np.inf:
            continue
        if (first >> np.uint64(t)) & _ONE:
            rise = end[t] - begin[t] if t < taps else 0.0
            if rise > slope:
                now, slope = t, rise
    value = begin[now] if now < taps else floor
    found = 0
    while not (last >> np.uint64(now)) & _ONE and found < len(places):
        following, meets, steepest = -1, np.inf, 0.0
        for t in range(taps + 1):
            if t == taps and floor == -np.inf:
                continue
            own = begin[t] if t < taps else floor
            rise = end[t] - begin[t] if t < taps else 0.0
            if rise > slope:
                place = (value - own) / (rise - slope)
                if place < meets or (place == meets and rise > steepest):
                    following, meets, steepest = t, place, rise
        if following < 0:
            break
        places[found] = min(max(meets, places[found - 1] if found else 0.0), 1.0)
        before[found], after[found] = now, following
        found += 1
        now, slope = following, steepest
        value = begin[now] if now < taps else floor
    return found


@compiled()
def tap_pair(a, b, taps):
    """Return a number for two taps that is the same in both directions of an edge."""
    return np.uint64(min(a, b) * (taps + 1) + max(a, b))


@compiled()
def cut_edges(maxima, bending, sets, ends, face, keys, own):
    """Find the new vertices on all edges.

    Args:
        maxima: `Maxima`.
        bending: `Bending`.
        sets: Winners `(vertices, groups)`.
        ends: `(edges, 2)` vertices.
        face: `(edges,)` one face of each edge.
        keys: `(vertices,)`.
        own: `(edges,)` keys of the edges.

    Returns:
        Starts of the edges among the new vertices; and for each new vertex, in the order from the
        edge's first vertex to its last, its position on the edge and its key.
    """
    values, taps, columns, names, floors, tolerance = maxima
    counts, groups, stop = bending
    size = values.shape[1] // taps
    new_start = np.zeros(len(ends) + 1, np.int64)
    new_place, new_key = np.empty(64), np.empty(64, np.uint64)
    begin, end = np.empty(taps), np.empty(taps)
    space = np.empty(taps + 1)
    before, after = np.empty(taps + 1, np.int64), np.empty(taps + 1, np.int64)
    places, from_gap, to_gap = np.empty(64), np.empty(64), np.empty(64)
    found_keys = np.empty(64, np.uint64)
    total = 0
    for e in range(len(ends)):
        a, b = ends[e]
        if keys[a] > keys[b]:
            a, b = b, a
        found = 0
        for i in range(counts[face[e]], counts[face[e] + 1]):
            g = groups[i]
            if g >= stop:
                break
            if sets[a, g] & sets[b, g] != 0:
                continue
            column = columns[g]
            floor = floors[column]
            for t in range(taps):
                begin[t] = values[a, t * size + column]
                end[t] = values[b, t * size + column]
            first, last = np.uint64(sets[a, g]), np.uint64(sets[b, g])
            many = take_overs(begin, end, floor, first, last, space, before, after)
            for k in range(many):
                if found == len(places):
                    places, from_gap = grown(places, found), grown(from_gap, found)
                    to_gap, found_keys = grown(to_gap, found), grown(found_keys, found)
                i0, i1 = before[k], after[k]
                places[found] = space[k]
                from_gap[found] = (begin[i1] if i1 < taps else floor) - (
                    begin[i0] if i0 < taps else floor
                )
                to_gap[found] = (end[i1] if i1 < taps else floor) - (
                    end[i0] if i0 < taps else floor
                )
                salt = hash_pair(np.uint64(names[column]), tap_pair(i0, i1, taps))
                found_keys[found] = hash_pair(own[e], salt)
                found += 1
        forward = a == ends[e, 0]
        previous = -1.0
        begins = total
        for i in np.argsort(places[:found], kind="mergesort"):
            if previous >= 0:
                gap = from_gap[i] + previous * (to_gap[i] - from_gap[i])
                if abs(gap) <= tolerance or places[i] <= previous:
                    continue
            if total == len(new_place):
                new_place, new_key = grown(new_place, total), grown(new_key, total)
            previous = places[i]
            new_place[total], new_key[total] = previous, found_keys[i]
            total += 1
        if not forward:
            new_place[begins:total] = 1 - new_place[begins:total][::-1].copy()
            new_key[begins:total] = new_key[begins:total][::-1].copy()
        new_start[e + 1] = total
    return new_start, new_place[:total].copy(), new_key[:total].copy()
