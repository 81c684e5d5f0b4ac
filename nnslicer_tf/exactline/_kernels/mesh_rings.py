"""Compiled loops that cut the ring of a face's corners by one group of values.

Groups, taps and winners are those of `mesh_bends`. First, vertices are added where the group bends
on the ring's edges; if three or more taps win on the ring, each of them gets a cell.
"""

from collections import namedtuple

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf.exactline._kernels.mesh_edges import take_overs, tap_pair
from nnslicer_tf.exactline._kernels.mesh_keys import grown, hash_pair
from nnslicer_tf.exactline._kernels.mesh_queries import area

# The groups that bend in a face: columns of values, number of taps, floors, numbers from
# which keys are made, tolerance.
Groups = namedtuple("Groups", ["columns", "taps", "floors", "names", "tolerance"])
# The vertices of a face that is being cut: numbers in the mesh, keys, places, taps of the face's
# groups `(vertices, groups · taps)`, winners `(vertices, groups)`, with room for more vertices.
Vertices = namedtuple("Vertices", ["ids", "keys", "places", "taps", "sets"])
# New vertices of the mesh: the two between which each lies, its place between them, its key.
New = namedtuple("New", ["sources", "weights", "keys"])

_ONE = np.uint64(1)
_NONE = np.uint64(0)


@compiled()
def most_added(taps):
    """Return the largest number of vertices that one cut of a face adds, whatever its size."""
    return 8 * (taps + 2) * (taps + 2)


@compiled()
def with_more(vertices, used, new, total, room):
    """Return vertices with room for so many more."""
    while used + room > len(vertices.ids):
        vertices = Vertices(
            grown(vertices.ids, room),
            grown(vertices.keys, room),
            grown(vertices.places, room),
            grown(vertices.taps, room),
            grown(vertices.sets, room),
        )
    while total + room > len(new.weights):
        new = New(grown(new.sources, room), grown(new.weights, room), grown(new.keys, room))
    return vertices, new


@compiled()
def bent(j, groups, corners, edges, crossed, crossings, vertices, used, new, total, old):
    """Return the corners of a face with a vertex wherever a group bends one of its edges.

    A neighbour within the same face that was cut earlier already has some of these vertices, which
    are listed in `crossed`.

    Returns:
        (corners, keys of the edges, crossings, used, total).
    """
    room = (len(corners) + 1) * (groups.taps + 2)
    ring, ring_edges = np.empty(room, np.int64), np.empty(room, np.uint64)
    n = 0
    for i in range(len(corners)):
        a, b = corners[i], corners[(i + 1) % len(corners)]
        ring[n], ring_edges[n] = a, edges[i]
        n += 1
        if vertices.sets[a, j] & vertices.sets[b, j] != _NONE:
            continue
        low, high = min(a, b), max(a, b)
        x = 0
        while x < crossings and (crossed[x, 0] != low or crossed[x, 1] != high):
            x += 1
        if x == crossings:
            crossed[x, 0], crossed[x, 1], crossed[x, 2] = low, high, used
            crossed[x, 3] = _cross(j, groups, low, high, edges[i], vertices, used, new, total, old)
            used += crossed[x, 3]
            total += crossed[x, 3]
            crossings += 1
        many = crossed[x, 3]
        for k in range(many):
            ring[n] = crossed[x, 2] + (k if a == low else many - 1 - k)
            ring_edges[n] = edges[i]
            n += 1
    return ring[:n], ring_edges[:n], crossings, used, total


@compiled()
def _cross(j, groups, low, high, edge, vertices, used, new, total, old):
    """Write the vertices at which a group bends an edge; return their number."""
    taps = groups.taps
    places = np.empty(taps + 1)
    before, after = np.empty(taps + 1, np.int64), np.empty(taps + 1, np.int64)
    many = take_overs(
        vertices.taps[low, j * taps : (j + 1) * taps],
        vertices.taps[high, j * taps : (j + 1) * taps],
        groups.floors[j],
        vertices.sets[low, j],
        vertices.sets[high, j],
        places,
        before,
        after,
    )
    for k in range(many):
        _between(vertices, low, high, places[k], used + k, groups, new, total + k, old)
        ties = (_ONE << np.uint64(before[k])) | (_ONE << np.uint64(after[k]))
        vertices.sets[used + k, j] |= ties
        pair = hash_pair(np.uint64(groups.names[j]), tap_pair(before[k], after[k], taps))
        new.keys[total + k] = vertices.keys[used + k] = hash_pair(edge, pair)
    return many


@compiled()
def breaks_of(ring, sets):
    """Return the corners of a ring from which on another tap wins on the edges."""
    n = len(ring)
    common = sets[ring[0]] & sets[ring[1 % n]]
    first = -1
    for i in range(1, n):
        following = common & sets[ring[i]] & sets[ring[(i + 1) % n]]
        if following == _NONE:
            first = i
            break
        common = following
    if first < 0:
        return np.empty(0, np.int64)
    out = np.empty(n, np.int64)
    out[0] = first
    found = 1
    common = sets[ring[first]] & sets[ring[(first + 1) % n]]
    for step in range(1, n):
        i = (first + step) % n
        wins = sets[ring[i]] & sets[ring[(i + 1) % n]]
        if common & wins == _NONE:
            out[found] = i
            found += 1
            common = wins
        else:
            common &= wins
    return out[:found].copy()


@compiled()
def cells_of(ring, j, groups, vertices, used, new, total, old):
    """Return the cells of a ring on which three or more taps win: corners, starts, used."""
    taps, floor, tolerance = groups.taps, groups.floors[j], groups.tolerance
    n, before = len(ring), used
    whole = area(ring, vertices.places)
    cells = np.empty((taps + 1) * (n + taps + 2), np.int64)
    cell_start = np.zeros(taps + 2, np.int64)
    found = 0
    done = _NONE
    now, then = np.empty(n + 2 * taps + 4, np.int64), np.empty(n + 2 * taps + 4, np.int64)
    for tap in range(taps + 1):
        if (done >> np.uint64(tap)) & _ONE or (tap == taps and floor == -np.inf):
            continue
        size = n
        now[:n] = ring
        for other in range(taps + 1):
            if other == tap or (other == taps and floor == -np.inf):
                continue
            kept = 0
            for i in range(size):
                a, b = now[i], now[(i + 1) % size]
                gap = _gap(vertices, j, groups, a, tap, other)
                next_gap = _gap(vertices, j, groups, b, tap, other)
                if gap >= -tolerance:
                    then[kept] = a
                    kept += 1
                rises = gap < -tolerance and next_gap > tolerance
                if rises or (gap > tolerance and next_gap < -tolerance):
                    low, high = min(a, b), max(a, b)
                    low_gap = gap if low == a else next_gap
                    weight = low_gap / (low_gap - (next_gap if low == a else gap))
                    number = total + used - before
                    _between(vertices, low, high, weight, used, groups, new, number, old)
                    then[kept] = used
                    used += 1
                    kept += 1
            now, then = then, now
            size = kept
            if size < 3:
                break
        if size < 3 or area(now[:size], vertices.places) <= 1e-14 * whole:
            continue
        common = vertices.sets[now[0], j]
        for i in range(size):
            others = cells[: cell_start[found]]
            now[i] = _same(now[i], before, others, vertices.sets[:, j], vertices.places, whole)
            common &= vertices.sets[now[i], j]
        done |= common
        cells[cell_start[found] : cell_start[found] + size] = now[:size]
        cell_start[found + 1] = cell_start[found] + size
        found += 1
    return cells, cell_start[: found + 1], used


@compiled()
def _gap(vertices, j, groups, vertex, first, second):
    """Return the difference between two taps of a group, one of which may be the floor."""
    taps, row = groups.taps, vertices.taps[vertex]
    a = row[j * taps + first] if first < taps else groups.floors[j]
    b = row[j * taps + second] if second < taps else groups.floors[j]
    return a - b


@compiled()
def _same(vertex, before, others, sets, places, whole):
    """Return an earlier cell's vertex at the same place as a new one, otherwise the new one."""
    if vertex < before:
        return vertex
    for other in others:
        if other >= before:
            ties = sets[other] & sets[vertex]
            ties &= ties - _ONE
            ties &= ties - _ONE
            x, y = places[other, 0] - places[vertex, 0], places[other, 1] - places[vertex, 1]
            apart = x * x + y * y
            if ties != _NONE and apart <= 1e-12 * whole:
                return other
    return vertex


@compiled()
def read_taps(values, groups, vertex, out):
    """Write the taps of some groups at a vertex, `(groups · taps,)`, ordered by group."""
    taps, columns = groups.taps, groups.columns
    size = values.shape[1] // taps
    for j in range(len(columns)):
        for t in range(taps):
            out[j * taps + t] = values[vertex, t * size + columns[j]]


@compiled()
def own_winners(row, groups, out):
    """Write the winners of groups from their taps `(groups · taps,)`."""
    taps, tolerance = groups.taps, groups.tolerance
    for j in range(len(groups.floors)):
        floor = groups.floors[j]
        largest = floor
        for t in range(taps):
            largest = max(largest, row[j * taps + t])
        found = _ONE << np.uint64(taps) if floor >= largest - tolerance else _NONE
        for t in range(taps):
            if row[j * taps + t] >= largest - tolerance:
                found |= _ONE << np.uint64(t)
        out[j] = found


@compiled()
def _between(vertices, a, b, weight, at, groups, new, number, old):
    """Write a vertex between two others to the face and to the mesh, without its key."""
    taps, places = vertices.taps, vertices.places
    for j in range(taps.shape[1]):
        taps[at, j] = taps[a, j] + weight * (taps[b, j] - taps[a, j])
    for i in range(2):
        places[at, i] = places[a, i] + weight * (places[b, i] - places[a, i])
    own_winners(taps[at], groups, vertices.sets[at])
    vertices.ids[at] = old + number
    new.sources[number, 0], new.sources[number, 1] = vertices.ids[a], vertices.ids[b]
    new.weights[number] = weight
