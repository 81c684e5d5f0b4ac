"""Compiled loops that cut the faces of a mesh along the bends of the values at its vertices.

Groups, taps and winners are those of `mesh.Search`. One group after the other cuts the faces in
which it bends. Vertices are added where it bends on a face's edges; the new edge between two of
them halves the face, and where three or more taps win in it, each gets a cell.

Keys identify vertices and edges across tiles that were cut separately, so they depend neither on
rounding nor on the order of the work.
"""

from collections import namedtuple

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf.exactline._kernels.lines import with_room
from nnslicer_tf.exactline._kernels.mesh_queries import area

# The group that cuts: its column in `values`, the number from which keys are made, its constant;
# the mark of its winners; number of taps, of all groups; values this close are equal.
Group = namedtuple("Group", ["column", "name", "floor", "mark", "taps", "size", "tolerance"])
# The vertices: those of a `Mesh`, with values; the two vertices between which a new one lies, and
# its place between them; winners of the group whose mark is there.
Vertices = namedtuple(
    "Vertices", ["places", "keys", "values", "sources", "weights", "winners", "marks"]
)
# Parts of faces: where corners and edges begin and end; the next part of the same face, or -1.
Parts = namedtuple("Parts", ["corners", "edges", "begin", "end", "following"])

_ONE = np.uint64(1)
_NONE = np.uint64(0)
_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xBF58476D1CE4E5B9)
_C = np.uint64(0x94D049BB133111EB)


@compiled
def hash_pair(x, y):
    """Return a key made from two keys, which depends on their order (SplitMix64)."""
    z = x * _A + y + _B
    z = (z ^ (z >> np.uint64(30))) * _B
    z = (z ^ (z >> np.uint64(27))) * _C
    return z ^ (z >> np.uint64(31))


@compiled
def edge_key(x, y):
    """Return the key of an edge between vertices with the given keys, in any order."""
    return hash_pair(x, y) if x < y else hash_pair(y, x)


@compiled
def edge_keys(begins, ends):
    """Return the keys of edges, given those of their vertices."""
    out = np.empty(len(begins), np.uint64)
    for i in range(len(begins)):
        out[i] = edge_key(begins[i], ends[i])
    return out


@compiled
def cut_faces(mesh, search, bending, first, most):
    """Cut all faces along the bends of waiting groups.

    Group g bends in the faces `bending[first[g] : first[g + 1]]`.
    Returns vertices (the mesh's first, unused rows at the end) and their number; starts, corners
    and edge keys of the faces; and the number of waiting groups that have been cut.
    """
    old, faces = len(mesh.keys), len(mesh.start) - 1
    waiting, taps = search.waiting, search.taps

    vertices = Vertices(
        with_room(mesh.places, old),
        with_room(mesh.keys, old),
        with_room(search.values.values, old),
        np.empty((2 * old, 2), np.int64),
        np.empty(2 * old),
        np.empty(2 * old, np.uint64),
        np.full(2 * old, -1),
    )
    parts = Parts(
        with_room(mesh.loop, len(mesh.loop)),
        with_room(mesh.edge_keys, len(mesh.loop)),
        with_room(mesh.start[:-1], faces),
        with_room(mesh.start[1:], faces),
        np.full(2 * faces, -1),
    )
    sizes = np.array([old, len(mesh.loop), faces])  # vertices, corners and parts in use
    changes = np.empty((taps + 1, 3))
    size = search.values.values.shape[1] // taps
    done = 0
    while done < len(waiting):
        cut = bending[first[done] : first[done + 1]]
        if sizes[0] > old and sizes[0] + len(cut) > old + most:
            break
        column = waiting[done]
        name, floor = search.groups[column], search.floors[column]
        group = Group(column, name, floor, done, taps, size, search.tolerance)
        corners = 0
        for f in cut:
            p = f
            while p >= 0:
                corners += parts.end[p] - parts.begin[p]
                p = parts.following[p]
        # Hash table of edges that were crossed: vertices, first new one, number of new ones.
        room = 16
        while room < 2 * corners:
            room *= 2
        crossed = np.full((room, 4), -1)
        for f in cut:
            p = f
            while p >= 0:
                following = parts.following[p]
                if not _has_winner(p, parts, group, vertices):
                    vertices, parts = _enlarged(vertices, parts, sizes, p, taps)
                    _cut_part(p, group, crossed, changes, vertices, parts, sizes)
                p = following
        done += 1

    # The parts that are left, face by face.
    start = np.zeros(sizes[2] + 1, np.int64)
    loop, edges = np.empty(sizes[1], np.int64), np.empty(sizes[1], np.uint64)
    number = at = 0
    for f in range(faces):
        p = f
        while p >= 0:
            for c in range(parts.begin[p], parts.end[p]):
                loop[at], edges[at] = parts.corners[c], parts.edges[c]
                at += 1
            number += 1
            start[number] = at
            p = parts.following[p]
    return vertices, sizes[0], start, loop[:at].copy(), edges[:at].copy(), done


@compiled
def _enlarged(vertices, parts, sizes, p, taps):
    """Return vertices and parts with room for those that one cut of a part adds."""
    corners = parts.end[p] - parts.begin[p]
    room = (corners + 1) * (taps + 1) + 8 * (taps + 2) * (taps + 2)
    if sizes[0] + room > len(vertices.keys):
        room += len(vertices.keys)
        vertices = Vertices(
            with_room(vertices.places, room),
            with_room(vertices.keys, room),
            with_room(vertices.values, room),
            with_room(vertices.sources, room),
            with_room(vertices.weights, room),
            with_room(vertices.winners, room),
            with_room(vertices.marks, room),
        )
    room = (taps + 2) * (2 * corners + 8 * (taps + 2))
    if sizes[1] + room > len(parts.corners) or sizes[2] + taps + 1 > len(parts.begin):
        room += len(parts.corners)
        more = len(parts.begin) + taps
        parts = Parts(
            with_room(parts.corners, room),
            with_room(parts.edges, room),
            with_room(parts.begin, more),
            with_room(parts.end, more),
            with_room(parts.following, more),
        )
    return vertices, parts


@compiled
def _tap(vertices, group, vertex, tap):
    """Return a tap's value at a vertex; the last is the constant."""
    if tap == group.taps:
        return group.floor
    return vertices.values[vertex, tap * group.size + group.column]


@compiled
def _mark_winners(vertices, group, vertex):
    largest = group.floor
    for tap in range(group.taps):
        largest = max(largest, _tap(vertices, group, vertex, tap))
    winners = _NONE
    for tap in range(group.taps + 1):
        if _tap(vertices, group, vertex, tap) >= largest - group.tolerance:
            winners |= _ONE << np.uint64(tap)
    vertices.winners[vertex] = winners
    vertices.marks[vertex] = group.mark


@compiled
def _has_winner(p, parts, group, vertices):
    """Return whether one tap wins at all corners of a part, so that the group does not bend."""
    common = ~_NONE
    for c in range(parts.begin[p], parts.end[p]):
        v = parts.corners[c]
        if vertices.marks[v] != group.mark:
            _mark_winners(vertices, group, v)
        common &= vertices.winners[v]
    return common != _NONE


@compiled
def _between(a, b, weight, group, vertices, sizes):
    """Add a vertex between two others, without its key; return its number."""
    new = sizes[0]
    sizes[0] += 1
    vertices.sources[new, 0], vertices.sources[new, 1] = a, b
    vertices.weights[new] = weight
    for array in (vertices.values, vertices.places):
        for i in range(array.shape[1]):
            array[new, i] = array[a, i] + weight * (array[b, i] - array[a, i])
    _mark_winners(vertices, group, new)
    return new


@compiled
def _cut_part(p, group, crossed, changes, vertices, parts, sizes):
    """Cut a part of a face by a group that bends in it."""
    # Add vertices where the group bends on edges; a neighbour may have added some of them.
    begin, count = parts.begin[p], parts.end[p] - parts.begin[p]
    ring = np.empty((count + 1) * (group.taps + 2), np.int64)
    edges = np.empty(len(ring), np.uint64)
    n = 0
    for i in range(count):
        a, b = parts.corners[begin + i], parts.corners[begin + (i + 1) % count]
        edge = parts.edges[begin + i]
        ring[n], edges[n] = a, edge
        n += 1
        if vertices.winners[a] & vertices.winners[b] != _NONE:
            continue
        low, high = (a, b) if vertices.keys[a] < vertices.keys[b] else (b, a)
        place = np.int64(hash_pair(np.uint64(low), np.uint64(high)) & np.uint64(len(crossed) - 1))
        while crossed[place, 0] >= 0 and (crossed[place, 0] != low or crossed[place, 1] != high):
            place = (place + 1) & (len(crossed) - 1)
        if crossed[place, 0] < 0:
            crossed[place, 0], crossed[place, 1], crossed[place, 2] = low, high, sizes[0]
            _cross(low, high, edge, group, changes, vertices, sizes)
            crossed[place, 3] = sizes[0] - crossed[place, 2]
        many = crossed[place, 3]
        for k in range(many):
            ring[n] = crossed[place, 2] + (k if a == low else many - 1 - k)
            edges[n] = edge
            n += 1
    ring, edges = ring[:n], edges[:n]

    # Cut between the corners from which on another tap wins.
    breaks = _breaks_of(ring, vertices.winners)
    if len(breaks) > 2:
        _cut_cells(p, ring, edges, group, vertices, parts, sizes)
        return
    apart = (breaks[1] - breaks[0]) % n if len(breaks) == 2 else 0
    if min(apart, n - apart) < 2:  # nothing between the breaks, perhaps by rounding
        _put(p, ring, edges, parts, sizes)
        return
    chord = edge_key(vertices.keys[ring[breaks[0]]], vertices.keys[ring[breaks[1]]])
    for side in range(2):
        size = (n - apart if side else apart) + 1
        corners, own = np.empty(size, np.int64), np.empty(size, np.uint64)
        for i in range(size):
            k = (breaks[side] + i) % n
            corners[i], own[i] = ring[k], edges[k]
        own[-1] = chord
        _put(_another(p, parts, sizes) if side else p, corners, own, parts, sizes)


@compiled
def _another(p, parts, sizes):
    """Return the number of a new part, which follows another one."""
    new = sizes[2]
    sizes[2] += 1
    parts.following[new], parts.following[p] = parts.following[p], new
    return new


@compiled
def _put(p, corners, edges, parts, sizes):
    first = sizes[1]
    sizes[1] += len(corners)
    parts.begin[p], parts.end[p] = first, sizes[1]
    for i in range(len(corners)):
        parts.corners[first + i], parts.edges[first + i] = corners[i], edges[i]


@compiled
def _cross(low, high, edge, group, changes, vertices, sizes):
    """Add the vertices between two others at which a group's maximum changes its tap."""
    taps, last = group.taps, vertices.winners[high]
    now, slope = np.int64(-1), -np.inf
    for tap in range(taps + 1):
        if (vertices.winners[low] >> np.uint64(tap)) & _ONE:
            rise = _tap(vertices, group, high, tap) - _tap(vertices, group, low, tap)
            if rise > slope:
                now, slope = tap, rise
    found = 0
    while not (last >> np.uint64(now)) & _ONE and found <= taps:
        value = _tap(vertices, group, low, now)
        following, meets, steepest = -1, np.inf, 0.0
        for tap in range(taps + 1):
            begin = _tap(vertices, group, low, tap)
            rise = _tap(vertices, group, high, tap) - begin
            if rise > slope:  # not for a constant of -inf, whose rise is NaN
                place = (value - begin) / (rise - slope)
                if place < meets or (place == meets and rise > steepest):
                    following, meets, steepest = tap, place, rise
        if following < 0:
            break
        place = min(max(meets, changes[found - 1, 0] if found else 0.0), 1.0)
        changes[found, 0], changes[found, 1], changes[found, 2] = place, now, following
        found += 1
        now, slope = following, steepest
    new = -1
    for k in range(found):
        before, after = np.int64(changes[k, 1]), np.int64(changes[k, 2])
        if k and (vertices.winners[new] >> np.uint64(after)) & _ONE:
            continue  # at the same place as the one before
        new = _between(low, high, changes[k, 0], group, vertices, sizes)
        vertices.winners[new] |= _ONE << np.uint64(before) | _ONE << np.uint64(after)
        pair = np.uint64(min(before, after) * (taps + 1) + max(before, after))
        vertices.keys[new] = hash_pair(edge, hash_pair(np.uint64(group.name), pair))


@compiled
def _breaks_of(ring, winners):
    """Return the corners of a ring from which on another tap wins on the edges."""
    n = len(ring)
    out, found = np.empty(n, np.int64), 0
    common = ~_NONE
    i, end = 0, n
    while i < end:
        wins = winners[ring[i % n]] & winners[ring[(i + 1) % n]]
        if common & wins == _NONE:
            if not found:  # from the first break once around
                end = i + n
            out[found] = i % n
            found += 1
            common = wins
        else:
            common &= wins
        i += 1
    return out[:found]


@compiled
def _cut_cells(p, ring, edges, group, vertices, parts, sizes):
    """Cut a ring on which three or more taps win into their cells."""
    taps, tolerance, n, before = group.taps, group.tolerance, len(ring), sizes[0]
    whole = area(ring, vertices.places)
    cells = np.empty((taps + 1) * (n + taps + 2), np.int64)
    start = np.zeros(taps + 2, np.int64)
    found = 0
    done = _NONE
    now, then = with_room(ring, 2 * taps + 4), with_room(ring, 2 * taps + 4)
    for tap in range(taps + 1):
        if (done >> np.uint64(tap)) & _ONE or (tap == taps and group.floor == -np.inf):
            continue
        # Clip the ring to where the tap is above each other one.
        size = n
        for i in range(n):
            now[i] = ring[i]
        for other in range(taps + 1):
            if other == tap or (other == taps and group.floor == -np.inf):
                continue
            inside = 0
            for i in range(size):
                a, b = now[i], now[(i + 1) % size]
                gap = _tap(vertices, group, a, tap) - _tap(vertices, group, a, other)
                next_gap = _tap(vertices, group, b, tap) - _tap(vertices, group, b, other)
                if gap >= -tolerance:
                    then[inside] = a
                    inside += 1
                rises = gap < -tolerance and next_gap > tolerance
                if rises or (gap > tolerance and next_gap < -tolerance):
                    low, high = min(a, b), max(a, b)
                    low_gap = gap if low == a else next_gap
                    weight = low_gap / (low_gap - (next_gap if low == a else gap))
                    then[inside] = _between(low, high, weight, group, vertices, sizes)
                    inside += 1
            now, then = then, now
            size = inside
            if size < 3:
                break
        if size < 3 or area(now[:size], vertices.places) <= 1e-14 * whole:
            continue
        common = ~_NONE
        for i in range(size):
            now[i] = _same(now[i], before, cells[: start[found]], vertices, whole)
            common &= vertices.winners[now[i]]
        for i in range(size):
            cells[start[found] + i] = now[i]
        done |= common
        start[found + 1] = start[found] + size
        found += 1
    of_face = np.uint64(group.name)  # neighbours share some corners, but not all
    for v in ring:
        of_face = hash_pair(of_face, vertices.keys[v])
    for v in range(before, sizes[0]):
        vertices.keys[v] = hash_pair(of_face, np.uint64(v - before + 1))

    # Edges on the ring keep their keys; those inside get keys made from their vertices.
    for k in range(found):
        cell = cells[start[k] : start[k + 1]]
        own = np.empty(len(cell), np.uint64)
        for i in range(len(cell)):
            a, b = cell[i], cell[(i + 1) % len(cell)]
            own[i] = edge_key(vertices.keys[a], vertices.keys[b])
            for j in range(n):
                if ring[j] == a and ring[(j + 1) % n] == b:
                    own[i] = edges[j]
        _put(_another(p, parts, sizes) if k else p, cell, own, parts, sizes)


@compiled
def _same(vertex, before, others, vertices, whole):
    """Return an earlier cell's vertex at the same place as a new one, otherwise the new one."""
    if vertex < before:
        return vertex
    for other in others:
        if other >= before:
            ties = vertices.winners[other] & vertices.winners[vertex]
            ties &= ties - _ONE
            ties &= ties - _ONE
            x = vertices.places[other, 0] - vertices.places[vertex, 0]
            y = vertices.places[other, 1] - vertices.places[vertex, 1]
            if ties != _NONE and x * x + y * y <= 1e-12 * whole:
                return other
    return vertex
