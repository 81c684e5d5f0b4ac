"""`Mesh`: a convex polygon cut into convex faces, with vertices that neighbours share."""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from nnslicer_tf.exactline._kernels import mesh_cuts
from nnslicer_tf.exactline.bends import Bends, largest_tap
from nnslicer_tf.exactline.points import Points

MAX_TAPS = 64  # Largest number of values of a maximum: a vertex's winners are bits of an integer


class Mesh(NamedTuple):
    """Faces in the plane."""

    places: np.ndarray  # (vertices, 2) float64, plane coordinates
    keys: np.ndarray  # (vertices,) uint64, identifying a vertex across all parts of a plane
    start: np.ndarray  # (faces + 1,) int64: face f has the corners start[f] to start[f + 1]
    loop: np.ndarray  # (corners,) int64 vertices, counter-clockwise
    edge_keys: np.ndarray  # (corners,) uint64 keys of the edges that start there

    @property
    def faces(self) -> int:
        """Number of faces."""
        return len(self.start) - 1

    @staticmethod
    def of(places: np.ndarray, start: np.ndarray, loop: np.ndarray) -> "Mesh":
        """Return a mesh whose vertices have new keys."""
        keys = np.arange(1, len(places) + 1, dtype=np.uint64)
        return Mesh(places, keys, start, loop, keys).with_new_edge_keys()

    def with_new_edge_keys(self) -> "Mesh":
        """Return the mesh with edges named after their vertices, as at the start of each step."""
        begins = self.keys[self.loop]
        return self._replace(edge_keys=mesh_cuts.edge_keys(begins, begins[self.following()]))

    def following(self) -> np.ndarray:
        """Return the corner that follows each one around its face, `(corners,)`."""
        after = np.arange(1, len(self.loop) + 1)
        after[self.start[1:] - 1] = self.start[:-1]
        return after

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges' vertices and the faces on both sides, `(edges, 2)` each, -1 outside."""
        ends = np.sort(np.stack([self.loop, self.loop[self.following()]], axis=1), axis=1)
        keys = ends[:, 0] * len(self.places) + ends[:, 1]
        _, first, edge, count = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        face = np.repeat(np.arange(self.faces), np.diff(self.start))
        other = np.full(len(first), -1)
        again = np.arange(len(keys)) != first[edge]
        other[edge[again]] = face[again]
        other[count > 2] = -2  # a third face: no valid mesh
        return ends[first], np.stack([face[first], other], axis=1)

    def fans(self) -> np.ndarray:
        """Return twice the area between a face's first corner and each edge, `(corners,)`."""
        steps = self.places[self.loop]
        steps -= np.repeat(steps[self.start[:-1]], np.diff(self.start), axis=0)
        ahead = steps[self.following()]
        return steps[:, 0] * ahead[:, 1] - ahead[:, 0] * steps[:, 1]

    def areas(self) -> np.ndarray:
        """Return the areas of the faces, `(faces,)`."""
        return np.add.reduceat(self.fans(), self.start[:-1]) / 2

    def middles(self) -> np.ndarray:
        """Return the means of the faces' corners, `(faces, 2)`."""
        sums = np.add.reduceat(self.places[self.loop], self.start[:-1])
        return sums / np.diff(self.start)[:, None]

    def integrals(self, values: np.ndarray) -> np.ndarray:
        """Return each face's mean of values `(vertices, outputs)`, times its area."""
        thirds = self.fans() / 6
        weights = thirds.copy()
        weights[self.following()] += thirds
        weights[self.start[:-1]] += np.add.reduceat(thirds, self.start[:-1])
        return csr_array((weights, self.loop, self.start), (self.faces, len(values))) @ values

    def part(self, faces: np.ndarray) -> tuple["Mesh", np.ndarray]:
        """Return the mesh of some of the faces, and the indices of their vertices."""
        lengths = np.diff(self.start)[faces]
        start = np.concatenate([[0], np.cumsum(lengths)])
        corners = np.repeat(self.start[faces] - start[:-1], lengths) + np.arange(start[-1])
        used, loop = np.unique(self.loop[corners], return_inverse=True)
        return Mesh(self.places[used], self.keys[used], start, loop, self.edge_keys[corners]), used

    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the faces on either side of the middle of the longer axis."""
        middles = self.middles()
        order = np.argsort(middles[:, np.argmax(np.ptp(middles, axis=0))], kind="stable")
        half = len(order) // 2
        return np.sort(order[:half]), np.sort(order[half:])


class Search(NamedTuple):
    """The groups of values that bend in a mesh.

    A *group* is a maximum of affine values (*taps*) and a constant (*floor*): a ReLU is the maximum
    of one value and 0. It bends where another tap becomes the largest. A vertex's *winners* are the
    taps within the tolerance of the largest, one bit each, the floor last; by convexity, a group
    does not bend in a face if one tap wins at all its corners.
    """

    taps: int  # number of values in each maximum
    groups: np.ndarray  # (groups,): (position · channels + channel) · floors + index of the floor
    floors: np.ndarray  # (groups,) the constant of each; -inf for none
    tolerance: float  # values that differ by no more are equal
    values: Points  # (vertices, taps · groups), ordered by tap
    waiting: np.ndarray  # indices of the groups that have not cut the faces yet

    @staticmethod
    def of(window: Points, bends: Bends, tolerance: float) -> "Search":
        """Return the groups that may bend: no tap wins at all points of a window."""
        taps, floors = bends.taps, np.asarray(bends.floors, np.float64)
        values = window.by_position.reshape(window.positions, window.number, taps, -1)
        if taps == 1:
            least, most = values.min(axis=(1, 2)), values.max(axis=(1, 2))
            bent = (least[..., None] < floors - tolerance) & (most[..., None] > floors + tolerance)
        else:
            largest = largest_tap(window.values, taps).reshape(*values.shape[:2], -1)
            bound = np.maximum(largest, floors[0]) - tolerance
            bent = ~(values >= bound[:, :, None]).all(axis=1).any(axis=1)
            bent &= ~(floors[0] >= bound).all(axis=1)
        groups = np.flatnonzero(bent)
        position, channel = np.divmod(groups // len(floors), values.shape[-1])
        by_tap = values[position, :, :, channel].transpose(1, 2, 0)  # (vertices, taps, groups)
        points = Points(window.number, np.ascontiguousarray(by_tap).reshape(window.number, -1))
        floors = floors[groups % len(floors)]
        return Search(taps, groups, floors, tolerance, points, np.arange(len(groups)))

    def bending(self, mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
        """Return the faces, and the number of a waiting group that bends there, by group."""
        values, floors = self.values.values, self.floors[self.waiting]
        least = np.maximum(largest_tap(values, self.taps)[:, self.waiting], floors) - self.tolerance
        kind = np.uint8 if self.taps < 8 else np.uint64
        winners = (floors >= least).astype(kind) << kind(self.taps)
        for tap in range(self.taps):
            wins = values[:, tap * len(self.groups) + self.waiting] >= least
            winners |= wins.astype(kind) << kind(tap)
        common = np.bitwise_and.reduceat(winners[mesh.loop], mesh.start[:-1])
        groups, faces = np.nonzero(common.T == 0)
        return faces, groups


class Cut(NamedTuple):
    """A mesh after a cut; its vertices are the old ones, followed by the new ones."""

    mesh: Mesh
    search: Search  # the search in the new mesh
    sources: np.ndarray  # (new vertices, 2): the two vertices between which each lies
    weights: np.ndarray  # (new vertices,): its place between them
    used: np.ndarray | None  # indices of the vertices that the faces use; None for all

    def apply(self, points: Points) -> Points:
        """Return the values at the vertices of the new mesh."""
        points = points.extended(self.sources, self.weights)
        return points if self.used is None else points.take(self.used)


def cut(mesh: Mesh, search: Search, most: int) -> Cut:
    """Cut the faces along bends; after about `most` new vertices, the other groups wait."""
    faces, groups = search.bending(mesh)
    if not len(groups):
        search = search._replace(waiting=groups)
        return Cut(mesh, search, np.empty((0, 2), np.int64), np.empty(0), None)
    first = np.searchsorted(groups, np.arange(len(search.waiting) + 1))
    cuts = mesh_cuts.cut_faces(mesh, search, faces, first, most)
    vertices, total, start, loop, edge_keys, done = cuts
    places, keys, values = (array[:total] for array in vertices[:3])
    used = np.zeros(total, np.bool_)
    used[loop] = True
    index = None
    if not used.all():
        index = np.flatnonzero(used)
        places, keys, values = places[index], keys[index], values[index]
        loop = (np.cumsum(used) - 1)[loop]
    old = len(mesh.keys)
    mesh, points = Mesh(places, keys, start, loop, edge_keys), Points(len(keys), values)
    waiting = search.waiting[np.unique(groups[groups >= done])]
    search = search._replace(values=points, waiting=waiting)
    return Cut(mesh, search, vertices.sources[old:total], vertices.weights[old:total], index)
