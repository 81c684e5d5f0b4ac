"""`Mesh`: a convex polygon cut into convex faces, with vertices that neighbours share."""

from dataclasses import dataclass, replace

import numpy as np

from nnslicer_tf.exactline._kernels import (
    mesh_bends,
    mesh_edges,
    mesh_faces,
    mesh_keys,
    mesh_queries,
    mesh_values,
)
from nnslicer_tf.exactline.bends import Bends
from nnslicer_tf.exactline.points import Points

MOST_TAPS = 64  # a vertex's winners are stored as bits of an integer


@dataclass(frozen=True)
class Mesh:
    """Faces in the plane.

    Attributes:
        places: `(vertices, 2)` float64, plane coordinates.
        keys: `(vertices,)` uint64, identifying a vertex across all parts of a plane.
        start: `(faces + 1,)` int64: face f has the corners `start[f]` to `start[f + 1]`.
        loop: `(corners,)` int64 vertices, counter-clockwise.
        edge_keys: `(corners,)` uint64 keys of the edges that start there.
    """

    places: np.ndarray
    keys: np.ndarray
    start: np.ndarray
    loop: np.ndarray
    edge_keys: np.ndarray

    def __len__(self) -> int:
        return len(self.start) - 1

    @staticmethod
    def polygon(places: np.ndarray) -> "Mesh":
        """Return a single face with the corners `(corners, 2)`."""
        corners = len(places)
        return Mesh(
            places,
            np.arange(1, corners + 1, dtype=np.uint64),
            np.array([0, corners]),
            np.arange(corners),
            np.zeros(corners, np.uint64),
        ).with_new_edge_keys()

    def with_new_edge_keys(self) -> "Mesh":
        """Return the mesh with edges named after their vertices, as at the start of each step."""
        keys = mesh_keys.edge_keys(self.start, self.loop, self.keys)
        return Mesh(self.places, self.keys, self.start, self.loop, keys)

    def areas(self) -> np.ndarray:
        """Return the areas of the faces, `(faces,)`."""
        return mesh_queries.areas(self.places, self.start, self.loop)

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return each face's mean of values `(vertices, outputs)`, times its area."""
        values = np.ascontiguousarray(values)
        return mesh_queries.means(self.places, self.start, self.loop, values)

    def part(self, faces: np.ndarray) -> tuple["Mesh", np.ndarray]:
        """Return the mesh of some of the faces, and the indices of their vertices."""
        lengths = np.diff(self.start)[faces]
        start = np.concatenate([[0], np.cumsum(lengths)])
        corners = np.repeat(self.start[faces] - start[:-1], lengths) + np.arange(start[-1])
        used, loop = np.unique(self.loop[corners], return_inverse=True)
        edge_keys = self.edge_keys[corners]
        return Mesh(self.places[used], self.keys[used], start, loop, edge_keys), used

    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the faces on either side of the middle of the longer axis."""
        lengths = np.diff(self.start)
        centres = np.add.reduceat(self.places[self.loop], self.start[:-1]) / lengths[:, None]
        axis = np.argmax(np.ptp(centres, axis=0))
        order = np.argsort(centres[:, axis], kind="stable")
        middle = len(order) // 2
        return np.sort(order[:middle]), np.sort(order[middle:])


@dataclass(frozen=True)
class Cut:
    """A mesh after a cut, and where its new vertices are.

    Attributes:
        mesh: The mesh; its vertices are the old ones, then the new ones.
        sources: `(new vertices, 2)` the two vertices between which each lies.
        weights: `(new vertices,)` its position between them.
        kept: Indices of old and new vertices that the faces use; None for all.
    """

    mesh: Mesh
    sources: np.ndarray
    weights: np.ndarray
    kept: np.ndarray | None

    def apply(self, points: Points) -> Points:
        """Return the values at the vertices of the new mesh."""
        points = points.extended(self.sources, self.weights)
        return points if self.kept is None else points.take(self.kept)


@dataclass(frozen=True)
class Search:
    """The groups of values that bend in a mesh: see `nnslicer_tf.exactline._kernels.mesh_bends`.

    Attributes:
        taps: Number of values in each maximum.
        groups: `(groups,)` their indices among all groups of the operation.
        floors: `(groups,)` the constant of each; -inf for none.
        tolerance: Values that differ by no more count as equal.
        values: `(vertices, taps · groups)` at the mesh's vertices.
        waiting: Indices of the groups that faces have not been cut by.
    """

    taps: int
    groups: np.ndarray
    floors: np.ndarray
    tolerance: float
    values: Points
    waiting: np.ndarray

    @staticmethod
    def of(window: Points, bends: Bends, tolerance: float) -> "Search":
        """Return the groups that may bend between the points of a window."""
        values, floors = window.by_position, np.asarray(bends.floors, np.float64)
        groups = mesh_bends.active_groups(values, bends.taps, floors, tolerance)
        own = mesh_bends.group_values(values, bends.taps, len(floors), groups)
        return Search(
            bends.taps,
            groups,
            floors[groups % len(floors)],
            tolerance,
            Points(window.count, own),
            np.arange(len(groups)),
        )

    def applied(self, new: Cut, waiting: np.ndarray) -> "Search":
        """Return the search in a finer mesh."""
        return replace(self, values=new.apply(self.values), waiting=waiting)

    def take(self, used: np.ndarray) -> "Search":
        """Return the search in the part of the mesh with the vertices `used`."""
        return replace(self, values=self.values.take(used))

    def sets(self) -> np.ndarray:
        """Return every vertex's winners of the waiting groups, `(vertices, groups)`."""
        most = self.taps + int(np.isfinite(self.floors).any())
        sets = np.empty(
            (self.values.count, len(self.waiting)), np.uint8 if most <= 8 else np.uint64
        )
        mesh_bends.winners(
            self.values.values, self.taps, self.waiting, self.floors, self.tolerance, sets
        )
        return sets


def cut_by_lines(mesh: Mesh, values: np.ndarray) -> Mesh:
    """Return a mesh cut where affine functions are zero, given at its vertices `(vertices, n)`."""
    tolerance = 1e-12 * float(np.abs(values).max())
    window = Points(len(values), np.ascontiguousarray(values))
    search = Search.of(window, Bends(1, np.zeros(1)), tolerance)
    while len(search.waiting):
        new, waiting = cut(mesh, search, 1 << 20)
        if new is None:
            break
        mesh, search = new.mesh, search.applied(new, waiting)
    return mesh


def cut(mesh: Mesh, search: Search, most: int) -> tuple[Cut | None, np.ndarray]:
    """Cut the faces of a mesh along the bends of an operation.

    Args:
        mesh: The mesh.
        search: Where the operation bends.
        most: Approximate number of new vertices at which to stop.

    Returns:
        The cut, or None if no face bends; and the groups that are still waiting.
    """
    sets = search.sets()
    counts, groups = mesh_bends.bending_groups(sets, mesh.start, mesh.loop)
    if not len(groups):
        return None, groups
    order = np.argsort(groups, kind="stable")
    stop = mesh_bends.last_group(counts, groups, order, len(search.waiting), most)
    waiting = search.waiting[np.unique(groups[groups >= stop])]
    edge_of, ends, face = mesh_edges.find_edges(mesh.start, mesh.loop, len(mesh.keys))
    own = np.empty(len(ends), np.uint64)
    own[edge_of] = mesh.edge_keys
    values = search.values.values
    maxima = mesh_bends.Maxima(
        values, search.taps, search.waiting, search.groups, search.floors, search.tolerance
    )
    bending = mesh_bends.Bending(counts, groups, stop)
    edge_cuts = mesh_edges.cut_edges(maxima, bending, sets, ends, face, mesh.keys, own)
    sources, weights, keys, start, loop, edge_keys = mesh_faces.cut_faces(
        maxima,
        bending,
        mesh_faces.Faces(mesh.start, mesh.loop, mesh.edge_keys),
        edge_of,
        mesh_faces.Known(mesh.keys, mesh.places, values),
        mesh_faces.OnEdges(ends, *edge_cuts),
    )
    places = mesh_values.extended(mesh.places[None], sources, weights)[0]
    whole = Mesh(places, np.concatenate([mesh.keys, keys]), start, loop, edge_keys)
    used = np.zeros(len(whole.keys), np.bool_)
    used[loop] = True
    if used.all():
        return Cut(whole, sources, weights, None), waiting
    kept = np.flatnonzero(used)
    renumbered = np.cumsum(used) - 1
    finer = Mesh(places[kept], whole.keys[kept], start, renumbered[loop], edge_keys)
    return Cut(finer, sources, weights, kept), waiting
