"""Compiled loops that cut the faces of a mesh along the bends inside them.

Groups, taps and winners are those of `mesh_bends`.
"""

from collections import namedtuple

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf.exactline._kernels.mesh_keys import edge_key, grown, hash_pair
from nnslicer_tf.exactline._kernels.mesh_rings import (
    Groups,
    New,
    Vertices,
    bent,
    breaks_of,
    cells_of,
    most_added,
    own_winners,
    read_taps,
    with_more,
)

# Data of the mesh's vertices, and of the new ones on its edges, from `cut_edges`.
Known = namedtuple("Known", ["keys", "places", "values"])
OnEdges = namedtuple("OnEdges", ["ends", "start", "place", "key"])
# Faces: start of each face's corners, the corners, and keys of the edges that begin there.
Faces = namedtuple("Faces", ["start", "loop", "edges"])

_NONE = np.uint64(0)


@compiled()
def cut_faces(maxima, bending, mesh, edge_of, known, on_edges):
    """Cut all faces along the bends of their groups.

    Args:
        maxima: `Maxima`.
        bending: `Bending`.
        mesh: `Faces`.
        edge_of: `(corners,)`, from `find_edges`.
        known: `Known`.
        on_edges: `OnEdges`.

    Returns:
        For all new vertices, with those on edges first: `(new, 2)` vertices between which they
        lie, `(new,)` position between these, keys. For the faces: starts, corners, keys of the
        corners' edges.
    """
    counts, groups, stop = bending
    start, loop, corner_keys = mesh
    columns, names, floors = maxima.columns, maxima.names, maxima.floors
    new, total = _new_vertices(on_edges), len(on_edges.place)
    out, found = _no_faces(2 * len(start) + 64, 2 * len(loop) + 64), np.int64(0)
    for f in range(len(start) - 1):
        many = 0
        while counts[f] + many < counts[f + 1] and groups[counts[f] + many] < stop:
            many += 1
        own = columns[groups[counts[f] : counts[f] + many]]
        bends = Groups(own, maxima.taps, floors[own], names[own], maxima.tolerance)
        whole = slice(start[f], start[f + 1])
        face = (loop[whole], edge_of[whole], corner_keys[whole])
        vertices, faces = _opened(face, known, on_edges, bends)
        used = len(faces.loop)
        for j in range(many):
            faces, vertices, used, new, total = _cut_by(
                j, bends, faces, vertices, used, new, total, len(known.keys)
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
    """Return the new vertices on the edges, with room for as many more."""
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
    """Return an empty list of faces, with room for so many faces and corners."""
    start = np.empty(faces, np.int64)
    start[0] = 0
    return Faces(start, np.empty(corners, np.int64), np.empty(corners, np.uint64))


@compiled()
def _with_room(out, found, faces, corners):
    """Return the list of faces, enlarged if needed to hold so many more."""
    while found + faces >= len(out.start) or out.start[found] + corners > len(out.loop):
        out = Faces(grown(out.start, faces), grown(out.loop, corners), grown(out.edges, corners))
    return out


@compiled()
def _opened(face, known, on_edges, groups):
    """Return the vertices of a face, including cuts of its edges, and the face that they form.

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
    room, many = 2 * size + most_added(groups.taps), len(groups.columns)
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
        read_taps(known.values, groups, a, vertices.taps[at])
        corner = vertices.taps[at]
        at += 1
        forward = a == on_edges.ends[e, 0]
        for n in range(last - first):
            k = first + n if forward else last - 1 - n
            place = on_edges.place[k] if forward else 1 - on_edges.place[k]
            vertices.ids[at], vertices.keys[at] = len(known.keys) + k, on_edges.key[k]
            vertices.places[at] = known.places[a] + place * (known.places[b] - known.places[a])
            taps = vertices.taps[at]
            read_taps(known.values, groups, b, taps)
            for j in range(len(taps)):
                taps[j] = corner[j] + place * (taps[j] - corner[j])
            at += 1
    for v in range(size):
        own_winners(vertices.taps[v], groups, vertices.sets[v])
    return vertices, Faces(np.array([0, size]), np.arange(size), keys_out)


@compiled()
def _appended(out, found, faces, ids):
    """Append the parts of a face to those of the mesh, with the mesh's vertex numbers."""
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
        j: Index of the group among the face's groups.
        groups: `Groups`.
        faces: The parts.
        vertices: `Vertices`.
        used: Number of `vertices` in use.
        new: `New`.
        total: Number of `new` in use.
        old: Number of the mesh's vertices without the new ones.

    Returns:
        (parts, vertices, used, new, total).
    """
    taps, spare = groups.taps, most_added(groups.taps)
    out = _no_faces(2 * len(faces.start) + 16, len(faces.loop) + 64 + spare)
    found = np.int64(0)  # not a literal, for which Numba would compile the callees once more
    # Edges inside the face that were crossed: vertices, first new one, number of new ones
    crossed, crossings = np.empty((16, 4), np.int64), np.int64(0)
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
        vertices, new = with_more(vertices, used, new, total, room)
        while crossings + len(corners) > len(crossed):
            crossed = grown(crossed, len(corners))
        ring, ring_edges, crossings, used, total = bent(
            j, groups, corners, edges, crossed, crossings, vertices, used, new, total, old
        )
        breaks = breaks_of(ring, vertices.sets[:, j])
        if len(breaks) < 2:
            found = _emit(ring, ring_edges, out, found)
        elif len(breaks) == 2:
            found = _halve(ring, ring_edges, breaks, vertices.keys, out, found)
        else:
            cells, starts, after = cells_of(ring, j, groups, vertices, used, new, total, old)
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
def _emit(corners, edges, out, found):
    """Append a face; return the number of faces."""
    begins = out.start[found]
    out.loop[begins : begins + len(corners)] = corners
    out.edges[begins : begins + len(corners)] = edges
    out.start[found + 1] = begins + len(corners)
    return found + 1


@compiled()
def _emit_cells(cells, starts, ring, ring_edges, keys, out, found):
    """Append the cells of a ring; return the faces and their number.

    Edges on the ring keep their keys; those inside get keys made from their vertices.
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
        out = _with_room(out, found, np.int64(2), len(cell))
        found = _emit(cell, edges, out, found)
    return out, found


@compiled()
def _halve(ring, ring_edges, breaks, keys, out, found):
    """Cut a ring between its two breaks and append both halves; return the number of faces."""
    n = len(ring)
    chord = edge_key(keys[ring[breaks[0]]], keys[ring[breaks[1]]])
    sizes = ((breaks[1] - breaks[0]) % n + 1, (breaks[0] - breaks[1]) % n + 1)
    if min(sizes) < 3:  # by rounding, there is nothing between the breaks
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
