"""The faces of a mesh, cut along the bends inside them: compiled loops.

Groups, taps and winners are those of `mesh_bends`.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf._kernels.mesh_edges import _pair, _take_overs
from nnslicer_tf._kernels.mesh_keys import edge_key, grown, hash_pair
from nnslicer_tf._kernels.mesh_queries import area

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
    vertices, total = len(keys), len(new_place)
    sources = np.empty((2 * total + 64, 2), np.int64)
    weights = np.empty(2 * total + 64)
    fresh = np.empty(2 * total + 64, np.uint64)
    for e in range(len(ends)):
        for i in range(new_start[e], new_start[e + 1]):
            sources[i] = ends[e]
            weights[i], fresh[i] = new_place[i], new_key[i]
    out_start = np.empty(2 * len(start) + 64, np.int64)
    out_start[0] = 0
    out_loop = np.empty(2 * len(loop) + 64, np.int64)
    out_edge = np.empty(2 * len(loop) + 64, np.uint64)
    out_faces = 0
    spare = 8 * (taps + 2) * (taps + 2)
    for f in range(len(start) - 1):
        # The face with the new vertices on its edges
        size = start[f + 1] - start[f]
        for c in range(start[f], start[f + 1]):
            size += new_start[edge_of[c] + 1] - new_start[edge_of[c]]
        many = 0
        while counts[f] + many < counts[f + 1] and groups[counts[f] + many] < stop:
            many += 1
        own = columns[groups[counts[f] : counts[f] + many]]
        own_floors = floors[own]
        ids = np.empty(2 * size + spare, np.int64)
        local_keys = np.empty(2 * size + spare, np.uint64)
        xy = np.empty((2 * size + spare, 2))
        data = np.empty((2 * size + spare, many * taps))
        sets = np.empty((2 * size + spare, many), np.uint64)
        the_loop = np.arange(size)
        the_edge = np.empty(size, np.uint64)
        at = 0
        for c in range(start[f], start[f + 1]):
            a = loop[c]
            b = loop[c + 1] if c + 1 < start[f + 1] else loop[start[f]]
            ids[at], local_keys[at], the_edge[at] = a, keys[a], corner_keys[c]
            xy[at] = places[a]
            _read(values, own, taps, a, data[at])
            first = at
            at += 1
            e = edge_of[c]
            n = new_start[e + 1] - new_start[e]
            for i in range(n):
                k = new_start[e] + i if a == ends[e, 0] else new_start[e + 1] - 1 - i
                place = new_place[k] if a == ends[e, 0] else 1 - new_place[k]
                ids[at], local_keys[at], the_edge[at] = vertices + k, new_key[k], corner_keys[c]
                xy[at] = places[a] + place * (places[b] - places[a])
                _read(values, own, taps, b, data[at])
                for j in range(many * taps):
                    data[at, j] = data[first, j] + place * (data[at, j] - data[first, j])
                at += 1
        for v in range(size):
            _own_winners(data[v], taps, own_floors, tolerance, sets[v])
        used = size
        cut_start = np.array([0, size])
        # Cut by one group after the other
        for j in range(many):
            floor = own_floors[j]
            salt = np.uint64(names[own[j]])
            crossed = np.empty((16, 4), np.int64)  # edges of this face that the group has cut
            crossings = 0
            to_start = np.empty(2 * len(cut_start) + 16, np.int64)
            to_start[0] = 0
            to_loop = np.empty(len(the_loop) + 64 + spare, np.int64)
            to_edge = np.empty(len(the_loop) + 64 + spare, np.uint64)
            to_faces = 0
            for s in range(len(cut_start) - 1):
                corners = the_loop[cut_start[s] : cut_start[s + 1]]
                edges = the_edge[cut_start[s] : cut_start[s + 1]]
                if to_faces + taps + 4 >= len(to_start):
                    to_start = grown(to_start, taps + 4)
                while to_start[to_faces] + 2 * len(corners) + spare > len(to_loop):
                    to_loop = grown(to_loop, spare)
                    to_edge = grown(to_edge, spare)
                common = sets[corners[0], j]
                for v in corners[1:]:
                    common &= sets[v, j]
                if common != _NONE:
                    to_faces = _emit(corners, edges, to_start, to_loop, to_edge, to_faces)
                    continue
                room = (len(corners) + 1) * (taps + 1) + spare
                while used + room > len(ids):
                    ids, local_keys = grown(ids, room), grown(local_keys, room)
                    xy, data, sets = grown(xy, room), grown(data, room), grown(sets, room)
                while total + room > len(weights):
                    sources, weights = grown(sources, room), grown(weights, room)
                    fresh = grown(fresh, room)
                while crossings + len(corners) > len(crossed):
                    crossed = grown(crossed, len(corners))
                # Vertices where its edges bend, shared with the neighbour within the face
                ring = np.empty(room, np.int64)
                ring_edge = np.empty(room, np.uint64)
                n = 0
                for i in range(len(corners)):
                    a, b = corners[i], corners[(i + 1) % len(corners)]
                    ring[n], ring_edge[n] = a, edges[i]
                    n += 1
                    if sets[a, j] & sets[b, j] != _NONE:
                        continue
                    low, high = min(a, b), max(a, b)
                    x = 0
                    while x < crossings and (crossed[x, 0] != low or crossed[x, 1] != high):
                        x += 1
                    if x == crossings:
                        crossed[x, 0], crossed[x, 1], crossed[x, 2] = low, high, used
                        spaces = np.empty(taps + 1)
                        before = np.empty(taps + 1, np.int64)
                        after = np.empty(taps + 1, np.int64)
                        crossed[x, 3] = _take_overs(
                            data[low, j * taps : (j + 1) * taps],
                            data[high, j * taps : (j + 1) * taps],
                            floor,
                            sets[low, j],
                            sets[high, j],
                            spaces,
                            before,
                            after,
                        )
                        for k in range(crossed[x, 3]):
                            pair = _pair(before[k], after[k], taps)
                            sources[total, 0], sources[total, 1] = ids[low], ids[high]
                            weights[total] = spaces[k]
                            fresh[total] = hash_pair(edges[i], hash_pair(salt, pair))
                            _between(data, xy, low, high, spaces[k], used)
                            _own_winners(data[used], taps, own_floors, tolerance, sets[used])
                            tie = (_ONE << np.uint64(before[k])) | (_ONE << np.uint64(after[k]))
                            sets[used, j] |= tie
                            ids[used], local_keys[used] = vertices + total, fresh[total]
                            used += 1
                            total += 1
                        crossings += 1
                    for k in range(crossed[x, 3]):
                        forward = a == low
                        ring[n] = crossed[x, 2] + (k if forward else crossed[x, 3] - 1 - k)
                        ring_edge[n] = edges[i]
                        n += 1
                breaks = _breaks(ring[:n], sets[:, j])
                if len(breaks) < 2:
                    to_faces = _emit(ring[:n], ring_edge[:n], to_start, to_loop, to_edge, to_faces)
                elif len(breaks) == 2:
                    to_faces = _halve(
                        ring[:n],
                        ring_edge[:n],
                        breaks,
                        local_keys,
                        to_start,
                        to_loop,
                        to_edge,
                        to_faces,
                    )
                else:
                    old = used
                    cells, cell_start, used = _cells(
                        ring[:n],
                        j,
                        taps,
                        own_floors,
                        tolerance,
                        data,
                        xy,
                        sets,
                        used,
                        sources,
                        weights,
                        total,
                        ids,
                        vertices,
                    )
                    for v in range(old, used):
                        fresh[total] = hash_pair(
                            local_keys[ring[breaks[0]]], hash_pair(salt, np.uint64(v - old + 1))
                        )
                        local_keys[v] = fresh[total]
                        total += 1
                    place_in = np.full(used, -1, np.int64)
                    for i in range(n):
                        place_in[ring[i]] = i
                    for k in range(len(cell_start) - 1):
                        cell = cells[cell_start[k] : cell_start[k + 1]]
                        cell_edge = np.empty(len(cell), np.uint64)
                        for i in range(len(cell)):
                            a, b = cell[i], cell[(i + 1) % len(cell)]
                            if place_in[a] >= 0 and place_in[b] == (place_in[a] + 1) % n:
                                cell_edge[i] = ring_edge[place_in[a]]
                            else:
                                cell_edge[i] = edge_key(local_keys[a], local_keys[b])
                        if to_faces + 2 >= len(to_start):
                            to_start = grown(to_start, 4)
                        while to_start[to_faces] + len(cell) > len(to_loop):
                            to_loop, to_edge = grown(to_loop, spare), grown(to_edge, spare)
                        to_faces = _emit(cell, cell_edge, to_start, to_loop, to_edge, to_faces)
            cut_start = to_start[: to_faces + 1]
            the_loop, the_edge = to_loop[: to_start[to_faces]], to_edge[: to_start[to_faces]]
        begins = out_start[out_faces]
        while out_faces + len(cut_start) >= len(out_start):
            out_start = grown(out_start, len(cut_start))
        while begins + len(the_loop) > len(out_loop):
            out_loop = grown(out_loop, len(the_loop))
            out_edge = grown(out_edge, len(the_loop))
        for i in range(len(the_loop)):
            out_loop[begins + i], out_edge[begins + i] = ids[the_loop[i]], the_edge[i]
        for s in range(1, len(cut_start)):
            out_faces += 1
            out_start[out_faces] = begins + cut_start[s]
    corners_out = out_start[out_faces]
    return (
        sources[:total].copy(),
        weights[:total].copy(),
        fresh[:total].copy(),
        out_start[: out_faces + 1].copy(),
        out_loop[:corners_out].copy(),
        out_edge[:corners_out].copy(),
    )


@compiled()
def _read(values, groups, taps, vertex, out):
    """Write the taps of some groups at a vertex, `(groups · taps,)`, group after group."""
    size = values.shape[1] // taps
    for j in range(len(groups)):
        for t in range(taps):
            out[j * taps + t] = values[vertex, t * size + groups[j]]


@compiled()
def _own_winners(row, taps, floors, tolerance, out):
    """Write the winners of groups from their taps `(groups · taps,)`."""
    for j in range(len(floors)):
        floor = floors[j]
        largest = floor
        for t in range(taps):
            largest = max(largest, row[j * taps + t])
        found = _ONE << np.uint64(taps) if floor >= largest - tolerance else _NONE
        for t in range(taps):
            if row[j * taps + t] >= largest - tolerance:
                found |= _ONE << np.uint64(t)
        out[j] = found


@compiled()
def _between(data, xy, a, b, weight, new):
    """Write a vertex between two others."""
    for j in range(data.shape[1]):
        data[new, j] = data[a, j] + weight * (data[b, j] - data[a, j])
    for i in range(2):
        xy[new, i] = xy[a, i] + weight * (xy[b, i] - xy[a, i])


@compiled()
def _emit(corners, edges, to_start, to_loop, to_edge, faces):
    """Append a face."""
    begins = to_start[faces]
    to_loop[begins : begins + len(corners)] = corners
    to_edge[begins : begins + len(corners)] = edges
    to_start[faces + 1] = begins + len(corners)
    return faces + 1


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
def _halve(ring, ring_edge, breaks, keys, to_start, to_loop, to_edge, faces):
    """Append both halves of a ring, cut from one break to the other."""
    n = len(ring)
    chord = edge_key(keys[ring[breaks[0]]], keys[ring[breaks[1]]])
    sizes = ((breaks[1] - breaks[0]) % n + 1, (breaks[0] - breaks[1]) % n + 1)
    if min(sizes) < 3:  # rounding: there is nothing between the breaks
        return _emit(ring, ring_edge, to_start, to_loop, to_edge, faces)
    for side in range(2):
        begins = to_start[faces]
        for i in range(sizes[side]):
            k = (breaks[side] + i) % n
            to_loop[begins + i], to_edge[begins + i] = ring[k], ring_edge[k]
        to_edge[begins + sizes[side] - 1] = chord
        faces += 1
        to_start[faces] = begins + sizes[side]
    return faces


@compiled()
def _gap(data, j, taps, floor, vertex, first, second):
    """Return the difference of two taps of a group, of which one may be the floor."""
    a = data[vertex, j * taps + first] if first < taps else floor
    b = data[vertex, j * taps + second] if second < taps else floor
    return a - b


@compiled()
def _cells(
    ring, j, taps, floors, tolerance, data, xy, sets, used, sources, weights, total, ids, vertices
):  # fmt: skip
    """Return for a ring that three taps or more win the cell of each: corners, starts, used."""
    n, floor = len(ring), floors[j]
    old = used
    whole = area(ring, xy)
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
                gap = _gap(data, j, taps, floor, a, tap, other)
                next_gap = _gap(data, j, taps, floor, b, tap, other)
                if gap >= -tolerance:
                    then[kept] = a
                    kept += 1
                rises = gap < -tolerance and next_gap > tolerance
                if rises or (gap > tolerance and next_gap < -tolerance):
                    low, high = min(a, b), max(a, b)
                    low_gap = gap if low == a else next_gap
                    weight = low_gap / (low_gap - (next_gap if low == a else gap))
                    _between(data, xy, low, high, weight, used)
                    _own_winners(data[used], taps, floors, tolerance, sets[used])
                    place = total + used - old
                    sources[place, 0], sources[place, 1] = ids[low], ids[high]
                    weights[place] = weight
                    ids[used] = vertices + place
                    then[kept] = used
                    used += 1
                    kept += 1
            now, then = then, now
            size = kept
            if size < 3:
                break
        if size < 3 or area(now[:size], xy) <= 1e-14 * whole:
            continue
        common = sets[now[0], j]
        for i in range(size):
            now[i] = _same(now[i], old, cells[: cell_start[found]], sets[:, j], xy, whole)
            common &= sets[now[i], j]
        done |= common
        cells[cell_start[found] : cell_start[found] + size] = now[:size]
        cell_start[found + 1] = cell_start[found] + size
        found += 1
    return cells, cell_start[: found + 1], used


@compiled()
def _same(vertex, old, others, sets, xy, whole):
    """Return the vertex of earlier cells at the place of a new one, or the new one."""
    if vertex < old:
        return vertex
    for other in others:
        if other >= old:
            ties = sets[other] & sets[vertex]
            ties &= ties - _ONE
            ties &= ties - _ONE
            apart = (xy[other, 0] - xy[vertex, 0]) ** 2 + (xy[other, 1] - xy[vertex, 1]) ** 2
            if ties != _NONE and apart <= 1e-12 * whole:
                return other
    return vertex
