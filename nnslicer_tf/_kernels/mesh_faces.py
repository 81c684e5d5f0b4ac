"""The faces of a mesh, cut along the bends inside them: compiled loops.

Groups, taps and winners are those of `mesh_bends`.
"""

from collections import namedtuple

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf._kernels.mesh_edges import _pair, _take_overs
from nnslicer_tf._kernels.mesh_keys import edge_key, grown, hash_pair
from nnslicer_tf._kernels.mesh_queries import area

# What is known of the mesh's vertices; the new ones on its edges, from `cut_edges`.
Known = namedtuple("Known", ["keys", "places", "values"])
OnEdges = namedtuple("OnEdges", ["ends", "start", "place", "key"])
# The groups that bend in a face: columns of the values, number of taps, floors, numbers from
# which keys are made, tolerance.
Groups = namedtuple("Groups", ["columns", "taps", "floors", "names", "tolerance"])
# The vertices of a face that is being cut: numbers in the mesh, keys, places, taps of the face's
# groups `(vertices, groups · taps)`, winners `(vertices, groups)`. There is room for more.
Vertices = namedtuple("Vertices", ["ids", "keys", "places", "taps", "sets"])
# New vertices of the mesh: two between which each lies, its place between them, its key.
New = namedtuple("New", ["sources", "weights", "keys"])
# Faces: where the corners of each start, the corners, keys of the edges that begin there.
Faces = namedtuple("Faces", ["start", "loop", "edges"])

_ONE = np.uint64(1)
_NONE = np.uint64(0)


@compiled()
def cut_faces(
    values,
    taps,
    columns,
    names,
    floors,
    tolerance,
    counts,
    groups,
    stop,
    start,
    loop,
    edge_of,
    ends,
    corner_keys,
    keys,
    places,
    new_start,
    new_place,
    new_key,
):
    """Cut all faces along the bends of their groups.

    Args:
        values: `(vertices, taps · all groups)`.
        taps: Number of taps.
        columns: `(groups,)` the groups to look at.
        names: `(all groups,)` numbers from which keys are made.
        floors: `(all groups,)`; -inf for no floor.
        tolerance: Values that differ by no more are equal.
        counts: Starts of the faces in `groups`.
        groups: Groups that bend in each face.
        stop: Only groups before this one are cut.
        start: Faces.
        loop: Corners.
        edge_of: `(corners,)`, from `find_edges`.
        ends: `(edges, 2)`, from `find_edges`.
        corner_keys: `(corners,)` keys of the edges.
        keys: `(vertices,)`.
        places: `(vertices, 2)` plane coordinates.
        new_start: Starts of the edges among the new vertices, from `cut_edges`.
        new_place: Their places on the edges.
        new_key: Their keys.

    Returns:
        Of all new vertices, those of the edges first: `(new, 2)` vertices between which they lie,
        `(new,)` place between these, keys; and of the faces: starts, corners, keys of the
        corners' edges.
    """
    known = Known(keys, places, values)
    on_edges = OnEdges(ends, new_start, new_place, new_key)
    new, total = _new_vertices(on_edges), len(new_place)
    out, found = _no_faces(2 * len(start) + 64, 2 * len(loop) + 64), 0
    for f in range(len(start) - 1):
        many = 0
        while counts[f] + many < counts[f + 1] and groups[counts[f] + many] < stop:
            many += 1
        own = columns[groups[counts[f] : counts[f] + many]]
        bends = Groups(own, taps, floors[own], names[own], tolerance)
        whole = slice(start[f], start[f + 1])
        face = (loop[whole], edge_of[whole], corner_keys[whole])
        vertices, faces = _opened(face, known, on_edges, bends)
        used = len(faces.loop)
        for j in range(many):
            faces, vertices, used, new, total = _cut_by(
                j, bends, faces, vertices, used, new, total, len(keys)
            )
        out, found = _appended(out, found, faces, vertices.ids)
    corners = out.start[found]
    return (
        new.sources[:total].copy(),
        new.weights[:total].copy(),
        new.keys[:total].copy(),
        out.start[: found + 1].copy(),
        out.loop[:corners].copy(),
        out.edges[:corners].copy(),
    )


@compiled()
def _new_vertices(on_edges):
    """Return the new vertices on the edges, with room for as many again."""
    total = len(on_edges.place)
    new = New(
        np.empty((2 * total + 64, 2), np.int64),
        np.empty(2 * total + 64),
        np.empty(2 * total + 64, np.uint64),
    )
    new.weights[:total], new.keys[:total] = on_edges.place, on_edges.key
    for e in range(len(on_edges.ends)):
        for i in range(on_edges.start[e], on_edges.start[e + 1]):
            new.sources[i] = on_edges.ends[e]
    return new


@compiled()
def _no_faces(faces, corners):
    """Return a list of faces that is empty, with room for some."""
    start = np.empty(faces, np.int64)
    start[0] = 0
    return Faces(start, np.empty(corners, np.int64), np.empty(corners, np.uint64))


@compiled()
def _with_room(out, found, faces, corners):
    """Return a list of faces with room for so many more."""
    while found + faces >= len(out.start) or out.start[found] + corners > len(out.loop):
        out = Faces(grown(out.start, faces), grown(out.loop, corners), grown(out.edges, corners))
    return out


@compiled()
def _spare(taps):
    """Return how many vertices one cut of a face adds at most, whatever its size."""
    return 8 * (taps + 2) * (taps + 2)


@compiled()
def _opened(face, known, on_edges, groups):
    """Return the vertices of a face and of its edges' cuts, and the face made of all of them.

    Args:
        face: `(corners,)` vertices; edges; keys of the edges.
        known: `Known`.
        on_edges: `OnEdges`.
        groups: `Groups`.
    """
    corners, edges, edge_keys = face
    size = len(corners)
    for e in edges:
        size += on_edges.start[e + 1] - on_edges.start[e]
    room, many = 2 * size + _spare(groups.taps), len(groups.columns)
    vertices = Vertices(
        np.empty(room, np.int64),
        np.empty(room, np.uint64),
        np.empty((room, 2)),
        np.empty((room, many * groups.taps)),
        np.empty((room, many), np.uint64),
    )
    keys_out = np.empty(size, np.uint64)
    at = 0
    for i in range(len(corners)):
        a, b, e = corners[i], corners[(i + 1) % len(corners)], edges[i]
        first, last = on_edges.start[e], on_edges.start[e + 1]
        keys_out[at : at + 1 + last - first] = edge_keys[i]
        vertices.ids[at], vertices.keys[at] = a, known.keys[a]
        vertices.places[at] = known.places[a]
        _read(known.values, groups, a, vertices.taps[at])
        corner = vertices.taps[at]
        at += 1
        forward = a == on_edges.ends[e, 0]
        for n in range(last - first):
            k = first + n if forward else last - 1 - n
            place = on_edges.place[k] if forward else 1 - on_edges.place[k]
            vertices.ids[at], vertices.keys[at] = len(known.keys) + k, on_edges.key[k]
            vertices.places[at] = known.places[a] + place * (known.places[b] - known.places[a])
            taps = vertices.taps[at]
            _read(known.values, groups, b, taps)
            for j in range(len(taps)):
                taps[j] = corner[j] + place * (taps[j] - corner[j])
            at += 1
    for v in range(size):
        _own_winners(vertices.taps[v], groups, vertices.sets[v])
    return vertices, Faces(np.array([0, size]), np.arange(size), keys_out)


@compiled()
def _appended(out, found, faces, ids):
    """Append the parts of a face to the mesh's, with the vertices' numbers there."""
    out = _with_room(out, found, len(faces.start), len(faces.loop))
    begins = out.start[found]
    for i in range(len(faces.loop)):
        out.loop[begins + i], out.edges[begins + i] = ids[faces.loop[i]], faces.edges[i]
    for s in range(1, len(faces.start)):
        found += 1
        out.start[found] = begins + faces.start[s]
    return out, found


@compiled()
def _cut_by(j, groups, faces, vertices, used, new, total, old):
    """Cut the parts of a face by one group.

    Args:
        j: Which of the face's groups it is.
        groups: `Groups`.
        faces: The parts.
        vertices: `Vertices`.
        used: Number of these.
        new: `New`.
        total: Number of these.
        old: Number of the mesh's vertices without them.

    Returns:
        (parts, vertices, used, new, total).
    """
    taps, spare = groups.taps, _spare(groups.taps)
    out = _no_faces(2 * len(faces.start) + 16, len(faces.loop) + 64 + spare)
    found = 0
    # Edges inside the face that were crossed: vertices, first new one, number of new ones
    crossed, crossings = np.empty((16, 4), np.int64), 0
    for s in range(len(faces.start) - 1):
        part = slice(faces.start[s], faces.start[s + 1])
        corners, edges = faces.loop[part], faces.edges[part]
        out = _with_room(out, found, taps + 4, 2 * len(corners) + spare)
        common = vertices.sets[corners[0], j]
        for v in corners[1:]:
            common &= vertices.sets[v, j]
        if common != _NONE:
            found = _emit(corners, edges, out, found)
            continue
        room = (len(corners) + 1) * (taps + 1) + spare
        vertices, new = _with_more(vertices, used, new, total, room)
        while crossings + len(corners) > len(crossed):
            crossed = grown(crossed, len(corners))
        ring, ring_edges, crossings, used, total = _bent(
            j, groups, corners, edges, crossed, crossings, vertices, used, new, total, old
        )
        breaks = _breaks(ring, vertices.sets[:, j])
        if len(breaks) < 2:
            found = _emit(ring, ring_edges, out, found)
        elif len(breaks) == 2:
            found = _halve(ring, ring_edges, breaks, vertices.keys, out, found)
        else:
            cells, starts, after = _cells(ring, j, groups, vertices, used, new, total, old)
            first_key = vertices.keys[ring[breaks[0]]]
            for v in range(used, after):
                number = hash_pair(np.uint64(groups.names[j]), np.uint64(v - used + 1))
                new.keys[total] = vertices.keys[v] = hash_pair(first_key, number)
                total += 1
            used = after
            out, found = _emit_cells(
                cells, starts, ring, ring_edges, vertices.keys[:used], out, found
            )
    corners_out = out.start[found]
    cut = Faces(out.start[: found + 1], out.loop[:corners_out], out.edges[:corners_out])
    return cut, vertices, used, new, total


@compiled()
def _with_more(vertices, used, new, total, room):
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
def _bent(j, groups, corners, edges, crossed, crossings, vertices, used, new, total, old):
    """Return the corners of a face with a vertex wherever a group bends one of its edges.

    A neighbour within the same face that was cut before has some of these vertices already;
    `crossed` says which.

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
    many = _take_overs(
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
        pair = hash_pair(np.uint64(groups.names[j]), _pair(before[k], after[k], taps))
        new.keys[total + k] = vertices.keys[used + k] = hash_pair(edge, pair)
    return many


@compiled()
def _read(values, groups, vertex, out):
    """Write the taps of some groups at a vertex, `(groups · taps,)`, group after group."""
    taps, columns = groups.taps, groups.columns
    size = values.shape[1] // taps
    for j in range(len(columns)):
        for t in range(taps):
            out[j * taps + t] = values[vertex, t * size + columns[j]]


@compiled()
def _own_winners(row, groups, out):
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
    """Write a vertex between two others, without its key: in the face, and in the mesh."""
    taps, places = vertices.taps, vertices.places
    for j in range(taps.shape[1]):
        taps[at, j] = taps[a, j] + weight * (taps[b, j] - taps[a, j])
    for i in range(2):
        places[at, i] = places[a, i] + weight * (places[b, i] - places[a, i])
    _own_winners(taps[at], groups, vertices.sets[at])
    vertices.ids[at] = old + number
    new.sources[number, 0], new.sources[number, 1] = vertices.ids[a], vertices.ids[b]
    new.weights[number] = weight


@compiled()
def _emit(corners, edges, out, found):
    """Append a face; return their number."""
    begins = out.start[found]
    out.loop[begins : begins + len(corners)] = corners
    out.edges[begins : begins + len(corners)] = edges
    out.start[found + 1] = begins + len(corners)
    return found + 1


@compiled()
def _emit_cells(cells, starts, ring, ring_edges, keys, out, found):
    """Append the cells of a ring; return the faces, and their number.

    Edges on the ring keep their keys, those inside are named after their vertices.
    """
    n = len(ring)
    place_in = np.full(len(keys), -1, np.int64)
    for i in range(n):
        place_in[ring[i]] = i
    for k in range(len(starts) - 1):
        cell = cells[starts[k] : starts[k + 1]]
        edges = np.empty(len(cell), np.uint64)
        for i in range(len(cell)):
            a, b = cell[i], cell[(i + 1) % len(cell)]
            if place_in[a] >= 0 and place_in[b] == (place_in[a] + 1) % n:
                edges[i] = ring_edges[place_in[a]]
            else:
                edges[i] = edge_key(keys[a], keys[b])
        out = _with_room(out, found, 2, len(cell))
        found = _emit(cell, edges, out, found)
    return out, found


@compiled()
def _breaks(ring, sets):
    """Return the corners of a ring at which another tap wins the edges from there on."""
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
def _halve(ring, ring_edges, breaks, keys, out, found):
    """Append both halves of a ring, cut from one break to the other; return the faces' number."""
    n = len(ring)
    chord = edge_key(keys[ring[breaks[0]]], keys[ring[breaks[1]]])
    sizes = ((breaks[1] - breaks[0]) % n + 1, (breaks[0] - breaks[1]) % n + 1)
    if min(sizes) < 3:  # rounding: there is nothing between the breaks
        return _emit(ring, ring_edges, out, found)
    for side in range(2):
        begins = out.start[found]
        for i in range(sizes[side]):
            k = (breaks[side] + i) % n
            out.loop[begins + i], out.edges[begins + i] = ring[k], ring_edges[k]
        out.edges[begins + sizes[side] - 1] = chord
        found += 1
        out.start[found] = begins + sizes[side]
    return found


@compiled()
def _gap(vertices, j, groups, vertex, first, second):
    """Return the difference of two taps of a group, of which one may be the floor."""
    taps, row = groups.taps, vertices.taps[vertex]
    a = row[j * taps + first] if first < taps else groups.floors[j]
    b = row[j * taps + second] if second < taps else groups.floors[j]
    return a - b


@compiled()
def _cells(ring, j, groups, vertices, used, new, total, old):
    """Return for a ring that three taps or more win the cell of each: corners, starts, used."""
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
def _same(vertex, before, others, sets, places, whole):
    """Return the vertex of earlier cells at the place of a new one, or the new one."""
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
