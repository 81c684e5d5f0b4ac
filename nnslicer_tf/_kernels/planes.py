"""Compiled loops over planar meshes: which faces bend where, and the faces that bends cut.

A mesh has vertices and convex faces. Face f has the corners `start[f]` to `start[f + 1]` of
`loop`, counter-clockwise. A *group* is a maximum of some affine values (*taps*) and a constant
(*floor*): a ReLU is the maximum of one value and 0. Its bends are where another tap becomes the
largest. A vertex's *winners* are the taps within the tolerance of the largest, a bit each, the
floor last; by convexity, a group does not bend in a face if one tap wins at all its corners.

Vertices have keys that do not depend on rounding or on the order of the work: tiles that were cut
apart find the vertices on their seam again by them. No loop holds Python's lock.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled

_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xBF58476D1CE4E5B9)
_C = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_NONE = np.uint64(0)


@compiled()
def _hash(x, y):
    """Return a key made of two, in this order (SplitMix64)."""
    z = x * _A + y + _B
    z = (z ^ (z >> np.uint64(30))) * _B
    z = (z ^ (z >> np.uint64(27))) * _C
    return z ^ (z >> np.uint64(31))


@compiled()
def edge_key(x, y):
    """Return the key of an edge between vertices with the given keys, in any order."""
    return _hash(x, y) if x < y else _hash(y, x)


@compiled()
def edge_keys(start, loop, keys):
    """Return the key of the edge that begins at every corner."""
    out = np.empty(len(loop), np.uint64)
    for f in range(len(start) - 1):
        for c in range(start[f], start[f + 1]):
            after = c + 1 if c + 1 < start[f + 1] else start[f]
            out[c] = edge_key(keys[loop[c]], keys[loop[after]])
    return out


@compiled()
def active_groups(values, taps, floors, tolerance):
    """Return the groups of which no tap wins at all vertices.

    Args:
        values: `(positions, vertices, taps · channels)`.
        taps: Number of taps.
        floors: `(floors,)`: each channel has as many groups; -inf for no floor.
        tolerance: Values this near the largest win too.

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
                        found = _grown(found, 1)
                    found[at] = (p * channels + c) * kinds + k
                    at += 1
    return found[:at].copy()


@compiled()
def group_values(values, taps, kinds, groups):
    """Return the taps of some groups, `(vertices, taps · groups)`, tap after tap."""
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
    """Write every vertex's winners of some groups.

    Args:
        values: `(vertices, taps · all groups)`.
        taps: Number of taps.
        columns: `(groups,)` the groups to look at.
        floors: `(all groups,)`; -inf for no floor.
        tolerance: Values this near the largest win too.
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
    """Return the groups, columns of `sets`, that bend in every face: (starts, groups)."""
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
                    found = _grown(found, 1)
                found[at] = g
                at += 1
        counts[f + 1] = at
    return counts, found[:at].copy()


@compiled()
def last_group(counts, groups, size, most):
    """Return the group before which to stop, so that about `most` vertices are added.

    Args:
        counts: Starts of the faces in `groups`.
        groups: The groups that bend in each face.
        size: Number of all groups.
        most: Number of vertices; one group is cut in any case.
    """
    order = np.argsort(groups, kind="mergesort")
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


@compiled()
def _grown(array, more):
    bigger = np.empty((2 * len(array) + more, *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    return bigger


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
            place = np.int64(_hash(np.uint64(a), np.uint64(b)) & np.uint64(size - 1))
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
def _take_overs(begin, end, floor, first, last, places, before, after):
    """Follow a maximum along an edge, and write where another tap takes over, and which.

    The maximum of affine functions is convex: its slope only grows.

    Args:
        begin: `(taps,)` values at the beginning.
        end: `(taps,)` values at the end.
        floor: The constant; -inf for none.
        first: Winners at the beginning.
        last: Winners at the end; no tap wins at both.
        places: Written: shares of the edge in [0, 1], ascending.
        before: Written: taps.
        after: Written: taps.
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
def _pair(a, b, taps):
    """Return a number of two taps, the same in both directions of an edge."""
    return np.uint64(min(a, b) * (taps + 1) + max(a, b))


@compiled()
def cut_edges(
    values, taps, columns, names, floors, tolerance, sets, counts, groups, stop, ends, face, keys,
    own,
):  # fmt: skip
    """Find the new vertices on all edges.

    Args:
        values: `(vertices, taps · all groups)`.
        taps: Number of taps.
        columns: `(groups,)` the groups to look at.
        names: `(all groups,)` numbers from which keys are made.
        floors: `(all groups,)`; -inf for no floor.
        tolerance: Values that differ by no more are equal.
        sets: Winners `(vertices, groups)`.
        counts: Starts of the faces in `groups`.
        groups: Groups that bend in each face.
        stop: Only groups before this one are cut.
        ends: `(edges, 2)` vertices.
        face: `(edges,)` one of the faces of each.
        keys: `(vertices,)`.
        own: `(edges,)` keys of the edges.

    Returns:
        Starts of the edges among the new vertices; and for each of these, in the order from the
        edge's first vertex to its last, its place on the edge, and its key.
    """
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
            many = _take_overs(begin, end, floor, first, last, space, before, after)
            for k in range(many):
                if found == len(places):
                    places, from_gap = _grown(places, 1), _grown(from_gap, 1)
                    to_gap, found_keys = _grown(to_gap, 1), _grown(found_keys, 1)
                i0, i1 = before[k], after[k]
                places[found] = space[k]
                from_gap[found] = (begin[i1] if i1 < taps else floor) - (
                    begin[i0] if i0 < taps else floor
                )
                to_gap[found] = (end[i1] if i1 < taps else floor) - (
                    end[i0] if i0 < taps else floor
                )
                salt = _hash(np.uint64(names[column]), _pair(i0, i1, taps))
                found_keys[found] = _hash(own[e], salt)
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
                new_place, new_key = _grown(new_place, 1), _grown(new_key, 1)
            previous = places[i]
            new_place[total], new_key[total] = previous, found_keys[i]
            total += 1
        if not forward:
            new_place[begins:total] = 1 - new_place[begins:total][::-1].copy()
            new_key[begins:total] = new_key[begins:total][::-1].copy()
        new_start[e + 1] = total
    return new_start, new_place[:total].copy(), new_key[:total].copy()


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
                    to_start = _grown(to_start, taps + 4)
                while to_start[to_faces] + 2 * len(corners) + spare > len(to_loop):
                    to_loop = _grown(to_loop, spare)
                    to_edge = _grown(to_edge, spare)
                common = sets[corners[0], j]
                for v in corners[1:]:
                    common &= sets[v, j]
                if common != _NONE:
                    to_faces = _emit(corners, edges, to_start, to_loop, to_edge, to_faces)
                    continue
                room = (len(corners) + 1) * (taps + 1) + spare
                while used + room > len(ids):
                    ids, local_keys = _grown(ids, room), _grown(local_keys, room)
                    xy, data, sets = _grown(xy, room), _grown(data, room), _grown(sets, room)
                while total + room > len(weights):
                    sources, weights = _grown(sources, room), _grown(weights, room)
                    fresh = _grown(fresh, room)
                while crossings + len(corners) > len(crossed):
                    crossed = _grown(crossed, len(corners))
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
                            fresh[total] = _hash(edges[i], _hash(salt, pair))
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
                        fresh[total] = _hash(
                            local_keys[ring[breaks[0]]], _hash(salt, np.uint64(v - old + 1))
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
                            to_start = _grown(to_start, 4)
                        while to_start[to_faces] + len(cell) > len(to_loop):
                            to_loop, to_edge = _grown(to_loop, spare), _grown(to_edge, spare)
                        to_faces = _emit(cell, cell_edge, to_start, to_loop, to_edge, to_faces)
            cut_start = to_start[: to_faces + 1]
            the_loop, the_edge = to_loop[: to_start[to_faces]], to_edge[: to_start[to_faces]]
        begins = out_start[out_faces]
        while out_faces + len(cut_start) >= len(out_start):
            out_start = _grown(out_start, len(cut_start))
        while begins + len(the_loop) > len(out_loop):
            out_loop = _grown(out_loop, len(the_loop))
            out_edge = _grown(out_edge, len(the_loop))
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
    area = _area(ring, xy)
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
        if size < 3 or _area(now[:size], xy) <= 1e-14 * area:
            continue
        common = sets[now[0], j]
        for i in range(size):
            now[i] = _same(now[i], old, cells[: cell_start[found]], sets[:, j], xy, area)
            common &= sets[now[i], j]
        done |= common
        cells[cell_start[found] : cell_start[found] + size] = now[:size]
        cell_start[found + 1] = cell_start[found] + size
        found += 1
    return cells, cell_start[: found + 1], used


@compiled()
def _same(vertex, old, others, sets, xy, area):
    """Return the vertex of earlier cells at the place of a new one, or the new one."""
    if vertex < old:
        return vertex
    for other in others:
        if other >= old:
            ties = sets[other] & sets[vertex]
            ties &= ties - _ONE
            ties &= ties - _ONE
            apart = (xy[other, 0] - xy[vertex, 0]) ** 2 + (xy[other, 1] - xy[vertex, 1]) ** 2
            if ties != _NONE and apart <= 1e-12 * area:
                return other
    return vertex


@compiled()
def _area(corners, xy):
    """Return the area of a polygon, positive if counter-clockwise."""
    total = 0.0
    x0, y0 = xy[corners[0], 0], xy[corners[0], 1]
    for i in range(1, len(corners) - 1):
        a, b = corners[i], corners[i + 1]
        total += (xy[a, 0] - x0) * (xy[b, 1] - y0) - (xy[b, 0] - x0) * (xy[a, 1] - y0)
    return total / 2


@compiled()
def extended(values, sources, weights):
    """Return values `(positions, vertices, channels)` with those of new vertices behind them."""
    positions, vertices, channels = values.shape
    out = np.empty((positions, vertices + len(weights), channels))
    for p in range(positions):
        block = out[p]
        block[:vertices] = values[p]
        for i in range(len(weights)):
            a, b, weight = sources[i, 0], sources[i, 1], weights[i]
            for c in range(channels):
                block[vertices + i, c] = block[a, c] + weight * (block[b, c] - block[a, c])
    return out


@compiled()
def nonzero(values):
    """Return which channels are not zero at all vertices of a position, `(positions, channels)`."""
    positions, vertices, channels = values.shape
    found = np.zeros((positions, channels), np.bool_)
    for p in range(positions):
        for v in range(vertices):
            for c in range(channels):
                found[p, c] |= values[p, v, c] != 0.0
    return found


@compiled()
def window_sums(values, taps, kernel, bias, piece):
    """Return weighted sums of windows, without channels that are zero at all vertices.

    Args:
        values: `(positions, vertices, channels)`.
        taps: `(windows, taps)` positions, -1 for none.
        kernel: `(taps · channels, outputs)`.
        bias: `(outputs,)`.
        piece: How many vertices to gather at a time.

    Returns:
        `(windows, vertices, outputs)`.
    """
    windows, width = taps.shape
    vertices, channels = values.shape[1:]
    used = nonzero(values)
    out = np.empty((windows, vertices, len(bias)))
    matrix = np.empty_like(kernel)
    position, channel = np.empty(len(kernel), np.int64), np.empty(len(kernel), np.int64)
    space = np.empty(min(piece, vertices) * len(kernel))
    for w in range(windows):
        count = 0
        for t in range(width):
            p = taps[w, t]
            if p >= 0:
                for c in range(channels):
                    if used[p, c]:
                        position[count], channel[count] = p, c
                        matrix[count] = kernel[t * channels + c]
                        count += 1
        if count == 0:
            out[w] = bias
            continue
        for first in range(0, vertices, piece):
            last = min(first + piece, vertices)
            gathered = space[: (last - first) * count].reshape(last - first, count)
            for v in range(first, last):
                for i in range(count):
                    gathered[v - first, i] = values[position[i], v, channel[i]]
            np.dot(gathered, matrix[:count], out[w, first:last])
            out[w, first:last] += bias
    return out


@compiled()
def areas(places, start, loop):
    """Return the area of every face."""
    out = np.empty(len(start) - 1)
    for f in range(len(out)):
        out[f] = _area(loop[start[f] : start[f + 1]], places)
    return out


@compiled()
def edge_faces(start, loop, edge_of, edges):
    """Return the faces on both sides of every edge, `(edges, 2)`, -1 outside; -2 if too many."""
    out = np.full((edges, 2), -1, np.int64)
    for f in range(len(start) - 1):
        for c in range(start[f], start[f + 1]):
            e = edge_of[c]
            if out[e, 0] < 0:
                out[e, 0] = f
            elif out[e, 1] == -1:
                out[e, 1] = f
            else:
                out[e, 1] = -2
    return out


@compiled()
def means(places, start, loop, values):
    """Return the mean of the values over every face, `(faces, outputs)`, weighted by its area."""
    out = np.zeros((len(start) - 1, values.shape[1]))
    for f in range(len(out)):
        a = loop[start[f]]
        for c in range(start[f] + 1, start[f + 1] - 1):
            b, d = loop[c], loop[c + 1]
            x0, y0 = places[b, 0] - places[a, 0], places[b, 1] - places[a, 1]
            x1, y1 = places[d, 0] - places[a, 0], places[d, 1] - places[a, 1]
            third = (x0 * y1 - x1 * y0) / 6
            for i in range(values.shape[1]):
                out[f, i] += third * (values[a, i] + values[b, i] + values[d, i])
    return out


@compiled()
def slopes(places, start, loop, values):
    """Return the gradients of the values in every face, `(faces, outputs, 2)`.

    They are those of the largest triangle of three corners, one of which is the first.
    """
    out = np.zeros((len(start) - 1, values.shape[1], 2))
    for f in range(len(out)):
        a = loop[start[f]]
        largest, best = 0.0, (start[f] + 1, start[f] + 2)
        for c in range(start[f] + 1, start[f + 1] - 1):
            for d in range(c + 1, start[f + 1]):
                x0, y0 = places[loop[c], 0] - places[a, 0], places[loop[c], 1] - places[a, 1]
                x1, y1 = places[loop[d], 0] - places[a, 0], places[loop[d], 1] - places[a, 1]
                size = abs(x0 * y1 - x1 * y0)
                if size > largest:
                    largest, best = size, (c, d)
        if largest == 0.0:
            continue
        b, d = loop[best[0]], loop[best[1]]
        x0, y0 = places[b, 0] - places[a, 0], places[b, 1] - places[a, 1]
        x1, y1 = places[d, 0] - places[a, 0], places[d, 1] - places[a, 1]
        det = x0 * y1 - x1 * y0
        for i in range(values.shape[1]):
            up, on = values[b, i] - values[a, i], values[d, i] - values[a, i]
            out[f, i, 0] = (up * y1 - on * y0) / det
            out[f, i, 1] = (on * x0 - up * x1) / det
    return out


@compiled()
def box_tree(places, start, loop):
    """Return a tree of boxes to find faces by: order of the faces, boxes, children or faces.

    Node n has the box `boxes[n]` (least x and y, largest x and y); `nodes[n]` is its first child,
    whose sibling follows, or -1, and the range of its faces in the order.
    """
    faces = len(start) - 1
    face_boxes = np.empty((faces, 4))
    for f in range(faces):
        x0 = y0 = np.inf
        x1 = y1 = -np.inf
        for c in range(start[f], start[f + 1]):
            x, y = places[loop[c], 0], places[loop[c], 1]
            x0, y0, x1, y1 = min(x0, x), min(y0, y), max(x1, x), max(y1, y)
        face_boxes[f, 0], face_boxes[f, 1], face_boxes[f, 2], face_boxes[f, 3] = x0, y0, x1, y1
    order = np.arange(faces)
    boxes, nodes = np.empty((faces + 2, 4)), np.empty((faces + 2, 3), np.int64)
    nodes[0, 1], nodes[0, 2] = 0, faces
    count, at = 1, 0
    while at < count:
        first, last = nodes[at, 1], nodes[at, 2]
        own = order[first:last]
        boxes[at, 0] = face_boxes[own, 0].min()
        boxes[at, 1] = face_boxes[own, 1].min()
        boxes[at, 2] = face_boxes[own, 2].max()
        boxes[at, 3] = face_boxes[own, 3].max()
        nodes[at, 0] = -1
        if last - first > 4:
            wide = boxes[at, 2] - boxes[at, 0] > boxes[at, 3] - boxes[at, 1]
            axis = 0 if wide else 1
            centres = face_boxes[own, axis] + face_boxes[own, axis + 2]
            order[first:last] = own[np.argsort(centres)]
            middle = (first + last) // 2
            nodes[at, 0] = count
            nodes[count, 1], nodes[count, 2] = first, middle
            nodes[count + 1, 1], nodes[count + 1, 2] = middle, last
            count += 2
        at += 1
    return order, boxes[:count].copy(), nodes[:count].copy()


@compiled()
def locate(points, places, start, loop, order, boxes, nodes, slack):
    """Return the face that contains each point, -1 for none.

    Args:
        points: `(points, 2)`.
        places: Vertices.
        start: Faces.
        loop: Corners.
        order: From `box_tree`, as are `boxes` and `nodes`.
        boxes: See there.
        nodes: See there.
        slack: How far outside of a face a point may be.
    """
    out = np.full(len(points), -1, np.int64)
    stack = np.empty(128, np.int64)
    for i in range(len(points)):
        x, y = points[i]
        deepest = -slack
        stack[0] = 0
        top = 1
        while top:
            top -= 1
            n = stack[top]
            box = boxes[n]
            if x < box[0] - slack or y < box[1] - slack or x > box[2] + slack or y > box[3] + slack:
                continue
            if nodes[n, 0] >= 0:
                stack[top], stack[top + 1] = nodes[n, 0], nodes[n, 0] + 1
                top += 2
                continue
            for f in order[nodes[n, 1] : nodes[n, 2]]:
                inside = np.inf
                for c in range(start[f], start[f + 1]):
                    a = loop[c]
                    b = loop[c + 1] if c + 1 < start[f + 1] else loop[start[f]]
                    dx, dy = places[b, 0] - places[a, 0], places[b, 1] - places[a, 1]
                    length = np.sqrt(dx * dx + dy * dy)
                    if length > 0:
                        off = dx * (y - places[a, 1]) - dy * (x - places[a, 0])
                        inside = min(inside, off / length)
                if inside >= deepest:
                    deepest, out[i] = inside, f
    return out


@compiled()
def interpolated(points, faces, places, start, loop, values):
    """Return the values at points in faces, `(points, outputs)`, from the triangles around them."""
    out = np.empty((len(points), values.shape[1]))
    for i in range(len(points)):
        f = faces[i]
        a = loop[start[f]]
        x, y = points[i, 0] - places[a, 0], points[i, 1] - places[a, 1]
        best = -np.inf
        for c in range(start[f] + 1, start[f + 1] - 1):
            b, d = loop[c], loop[c + 1]
            x0, y0 = places[b, 0] - places[a, 0], places[b, 1] - places[a, 1]
            x1, y1 = places[d, 0] - places[a, 0], places[d, 1] - places[a, 1]
            det = x0 * y1 - x1 * y0
            if det <= 0.0:
                continue
            s, t = (x * y1 - x1 * y) / det, (x0 * y - x * y0) / det
            least = min(s, t, 1 - s - t)
            if least > best:
                best = least
                for k in range(values.shape[1]):
                    base = values[a, k]
                    out[i, k] = base + s * (values[b, k] - base) + t * (values[d, k] - base)
        if best == -np.inf:
            out[i] = values[a]
    return out
