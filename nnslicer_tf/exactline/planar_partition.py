"""`PlanarPartition`: the exact outputs of a network on a polygon, a `Plane` of the input space."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Patch

from nnslicer_tf._checks import check_points, counted
from nnslicer_tf._files import Archive, Saved
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from nnslicer_tf.exactline._kernels import mesh_queries
from nnslicer_tf.exactline.bends import Bends
from nnslicer_tf.exactline.mesh import MAX_TAPS, Mesh, Search, cut
from nnslicer_tf.exactline.partition import Margin, least_margin, scores_of
from nnslicer_tf.exactline.points import Points
from nnslicer_tf.report.figures import new_axes

_NOISE = 1e-12  # outputs nearer than this, relative to the largest, count as equal
_FLAT = 1e-6  # a point may be this far off the plane, relative to the polygon's size
_THIN = 1e-12  # a polygon is a line if it is no wider, relative to its length or by rounding alone
_SLACK = 1e-9  # a point may be this far outside of the polygon, relative to its size


@dataclass(frozen=True, eq=False)
class Plane:
    """A convex polygon, with orthonormal coordinates: the base class of all results in a plane."""

    origin: np.ndarray  # the first corner, of the model's input shape
    axes: np.ndarray  # (2, *input shape); the first points to the second corner
    corners: np.ndarray  # (corners, 2) coordinates, counter-clockwise

    @staticmethod
    def through(polygon: np.ndarray, shape: tuple[int, ...]) -> "Plane":
        """Return the plane of the corners `(corners, *shape)`, in order around the polygon.

        Repeated consecutive corners count once; the last may repeat the first. Raises
        InputShapeError or NonFiniteActivationError if they are not points of the input space, and
        InvalidArgumentError if they are not the corners of a convex polygon with an area.
        """
        points = check_points(polygon, "polygon", shape, 1)
        flat = points.reshape(len(points), int(np.prod(shape)))
        if flat.shape[1] < 2:
            raise InputShapeError(f"Planes need inputs of at least two values. Received: {shape}")
        # Corners that equal the next one, around the polygon, are left out.
        flat = flat[np.any(flat != np.roll(flat, -1, axis=0), axis=1)]
        if len(flat) < 3:
            raise InvalidArgumentError(
                f"polygon must have at least three different corners. Received: {len(points)} "
                f"points, {len(flat)} of them different from the next"
            )
        steps = flat - flat[0]
        length = np.linalg.norm(steps, axis=1).max()
        first = steps[1] / np.linalg.norm(steps[1])
        off = steps - np.outer(steps @ first, first)
        widths = np.linalg.norm(off, axis=1)
        eps = np.finfo(np.float32 if (flat == flat.astype(np.float32)).all() else np.float64).eps
        # Of a corner, in the inputs that vary; a shorter first side multiplies it at the far end.
        rounding = 2 * eps * np.linalg.norm(flat * steps.any(axis=0), axis=1).max()
        rounding *= length / np.linalg.norm(steps[1])
        if widths.max() <= max(_THIN * length, rounding):
            raise InvalidArgumentError(
                "polygon must have an area. Received: points on one line; exact_line partitions it"
            )
        second = off[np.argmax(widths)] / widths.max()
        second -= (second @ first) * first
        second /= np.linalg.norm(second)
        axes = np.stack([first, second])  # a convex polygon lies to the left of its first side
        corners = steps @ axes.T
        distance = np.linalg.norm(steps - corners @ axes, axis=1).max()
        if distance > max(_FLAT, rounding / widths.max()) * length:
            raise InvalidArgumentError(
                "The points of polygon must lie in one plane. Received: points that are up to "
                f"{distance:.3g} away from it"
            )
        # A convex polygon turns left at every corner, and around once in all.
        edges = np.roll(corners, -1, axis=0) - corners
        following = np.roll(edges, -1, axis=0)
        turns = edges[:, 0] * following[:, 1] - edges[:, 1] * following[:, 0]
        angles = np.arctan2(turns, (edges * following).sum(axis=1))
        rounded = 2 * rounding / np.linalg.norm(edges, axis=1).min()
        if (angles < -1e-9 - rounded).any() or abs(angles.sum() - 2 * np.pi) > 1e-6:
            raise InvalidArgumentError(
                "polygon must be convex, with its corners in order around it. Divide it into "
                f"convex ones. Received: corners at {np.round(corners, 6).tolist()} in its plane"
            )
        return Plane(points[0], axes.reshape(2, *shape), corners)

    @property
    def total_area(self) -> float:
        """Area of the polygon."""
        return area_of(self.corners)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the points of the input space at coordinates `(n, 2)`: `(n, *input shape)`."""
        places = check_points(places, "places", (2,), 1)
        return self.origin + np.tensordot(places, self.axes, axes=1)

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """Return the coordinates `(n, 2)` of points `(n, *input shape)` projected on the plane."""
        x = check_points(x, "x", self.origin.shape, 1)
        return (x - self.origin).reshape(len(x), self.origin.size) @ self.axes.reshape(2, -1).T


def area_of(corners: np.ndarray) -> float:
    """Return the area of a polygon `(corners, 2)`, positive if counter-clockwise."""
    x, y = (corners - corners[0]).T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


class Edges(NamedTuple):
    """The edges of the regions of a plane."""

    vertices: np.ndarray  # (edges, 2) int64 indices of their ends
    regions: np.ndarray  # (edges, 2) int64 regions on both sides; -1 outside the polygon


@dataclass(frozen=True, eq=False)
class Faces(Plane):
    """Convex regions of a polygon: the base class of partitions and classes."""

    vertices: np.ndarray
    start: np.ndarray
    loop: np.ndarray

    def __len__(self) -> int:
        """Return the number of regions."""
        return len(self.start) - 1

    @cached_property
    def areas(self) -> np.ndarray:
        """The areas of the regions, `(regions,)`, in the units of the input space."""
        return self.mesh.areas()

    @cached_property
    def edges(self) -> Edges:
        """The edges, with the neighbouring regions on both sides."""
        return Edges(*self.mesh.edges())

    @cached_property
    def mesh(self) -> Mesh:
        """The regions as a mesh, which can be cut further."""
        return Mesh.of(self.vertices, self.start, self.loop)

    def locate(self, places: np.ndarray) -> np.ndarray:
        """Return the region of each place `(n, 2)` in the polygon: `(n,)` int64; reject others."""
        places = np.ascontiguousarray(places, np.float64)
        if places.ndim != 2 or places.shape[1] != 2:
            raise InvalidArgumentError(
                "Places must be plane coordinates (n, 2); `coordinates` computes them from inputs. "
                f"Received shape: {places.shape}"
            )
        slack = _SLACK * float(np.ptp(self.corners, axis=0).max())
        faces = self.vertices, self.start, self.loop
        regions = mesh_queries.locate(places, *faces, *self._tree, slack)
        if (regions < 0).any():
            where = places[np.argmax(regions < 0)].tolist()
            raise InvalidArgumentError(f"The place {where} is not in the polygon.")
        return regions

    @cached_property
    def _tree(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        corners, start = self.vertices[self.loop], self.start[:-1]
        ends = np.minimum.reduceat(corners, start), np.maximum.reduceat(corners, start)
        return mesh_queries.box_tree(np.hstack(ends))


@dataclass(frozen=True, eq=False)
class PlanarPartition(Faces, Saved, ShownAsTable):
    """A polygon cut into convex regions on each of which the network is affine.

    Attributes:
        origin: Point of the input space with coordinates (0, 0), the polygon's first corner.
        axes: `(2, *input shape)` float64, orthonormal: the directions of the coordinates.
        corners: `(corners, 2)` coordinates of the polygon's corners, counter-clockwise.
        vertices: `(vertices, 2)` float64 coordinates; neighbouring regions share vertices.
        start: `(regions + 1,)` int64: region i has the corners `start[i]` to `start[i + 1]`.
        loop: `(all regions' corners,)` int64 indices of vertices, counter-clockwise.
        values: Logits at the vertices, `(vertices, *output shape)` float64.
    """

    _format = "nnslicer_tf plane 1"
    _arrays = {  # noqa: RUF012 - not changed
        "origin": (np.float64, "..."),
        "axes": (np.float64, "2 ..."),
        "corners": (np.float64, "corners 2"),
        "vertices": (np.float64, "vertices 2"),
        "start": (np.integer, "starts"),
        "loop": (np.integer, "loop"),
        "values": (np.float64, "vertices ..."),
    }

    values: np.ndarray

    def _check(self, file: Archive) -> None:
        file.check(self.axes.shape == (2, *self.origin.shape), "its axes do not fit its origin")
        start, loop = self.start, self.loop
        divides = start[0] == 0 and start[-1] == len(loop) and (np.diff(start) > 0).all()
        inside = (loop >= 0).all() and (loop < len(self.vertices)).all()
        file.check(divides and inside, "its 'start' and 'loop' are not regions of its vertices")
        whole, areas = self.total_area, self.areas  # negative if clockwise; rounding moves vertices
        fills = whole > 0 and areas.min() > -_SLACK * whole and abs(areas.sum() / whole - 1) < 1e-3
        file.check(fills, "its regions do not fill its polygon, or are not counter-clockwise")

    def __repr__(self) -> str:
        return f"PlanarPartition({counted(len(self), 'region')}, input shape {self.origin.shape})"

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per region: corners, area, and the mean of each output."""
        means = self._integrals / np.maximum(self.areas, np.finfo(float).tiny)[:, None]
        columns = {f"mean output {i}": column for i, column in enumerate(means.T)}
        return pd.DataFrame({"corners": np.diff(self.start), "area": self.areas, **columns})

    def outputs(self, places: np.ndarray) -> np.ndarray:
        """Return the exact logits at coordinates `(n, 2)` in the polygon: `(n, *output shape)`."""
        # In the coordinates of the region's largest triangle, so that rounding errors do not grow.
        first, second, third = self._triangles[:, self.locate(places)]
        axes = self.vertices[[second, third]] - self.vertices[first]  # (2, n, 2)
        steps = np.linalg.pinv(axes.transpose(1, 2, 0)) @ (places - self.vertices[first])[..., None]
        base, *ends = self.values.reshape(len(self.values), -1)[[first, second, third]]
        outputs = base + steps[:, 0] * (ends[0] - base) + steps[:, 1] * (ends[1] - base)
        return outputs.reshape(-1, *self.values.shape[1:])

    def integrate(self) -> np.ndarray:
        """Return the exact mean of every output over the polygon, of the output's shape."""
        return (self._integrals.sum(axis=0) / self.areas.sum()).reshape(self.values.shape[1:])

    def margin(self, label: int | None = None) -> Margin:
        """Return a class's margin, by default the first corner's; see `LinearPartition.margin`."""
        first = np.argmin(((self.vertices - self.corners[0]) ** 2).sum(axis=1))
        label, other, value, vertex = least_margin(self.values, label, int(first))
        place = self.vertices[vertex]
        return Margin(label, other, value, place, self.at(place[None])[0])

    def classify(self, lowest: bool = False) -> "PlanarClasses":
        """Divide regions of up to 64 classes at boundaries; see `LinearPartition.classify`."""
        mesh, scores = divided(self.mesh, scores_of(self.values, lowest, MAX_TAPS))
        plane, faces = (self.origin, self.axes, self.corners), (mesh.start, mesh.loop)
        return PlanarClasses(*plane, mesh.places, *faces, np.argmax(mesh.integrals(scores), axis=1))

    @cached_property
    def _integrals(self) -> np.ndarray:
        return self.mesh.integrals(self.values.reshape(len(self.values), -1))

    @cached_property
    def _triangles(self) -> np.ndarray:
        """Vertices of the largest triangle at the first corner of each region, `(3, regions)`."""
        order = np.lexsort((self.mesh.fans(), np.repeat(np.arange(len(self)), np.diff(self.start))))
        corner = order[self.start[1:] - 1]
        return self.loop[np.stack([self.start[:-1], corner, self.mesh.following()[corner]])]


def divided(mesh: Mesh, values: np.ndarray, classes: slice = np.s_[:]) -> tuple[Mesh, np.ndarray]:
    """Return a mesh cut where another of the `classes` becomes the largest, and its values."""
    scores = np.ascontiguousarray(values[:, classes])
    bends = Bends(scores.shape[1], np.array([-np.inf]))
    tolerance = _NOISE * float(np.abs(scores).max())
    # One vector at every vertex: a single group of taps, which one cut divides completely.
    new = cut(mesh, Search.of(Points(len(scores), scores), bends, tolerance), 1)
    return new.mesh, new.apply(Points(len(values), np.ascontiguousarray(values))).values


@dataclass(frozen=True, eq=False)
class PlanarClasses(Faces, ShownAsTable):
    """The regions of a plane divided into `labels`, `(regions,)` int64; see `PlanarPartition`."""

    labels: np.ndarray

    def __repr__(self) -> str:
        classes = sorted(set(self.labels.tolist()))
        return f"PlanarClasses({counted(len(self), 'region')} of the classes {classes})"

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per class: regions, share of the area, boundary's length."""
        rows = []
        for label, count in zip(*np.unique(self.labels, return_counts=True), strict=True):
            steps = np.diff(self.boundary(label), axis=1)[:, 0]
            row = {"class": label, "regions": count, "share": self.area(label)}
            rows.append(row | {"boundary": np.linalg.norm(steps, axis=1).sum()})
        return pd.DataFrame(rows)

    def area(self, label: int) -> float:
        """Return the share of the polygon in which a class wins, in [0, 1]."""
        return float(self.areas[self.labels == label].sum() / self.areas.sum())

    def label_at(self, places: np.ndarray) -> np.ndarray:
        """Return the classes at places `(n, 2)` in the polygon: `(n,)`; on boundaries, either."""
        return self.labels[self.locate(places)]

    @cached_property
    def apart(self) -> tuple[np.ndarray, np.ndarray]:
        """The edges between different classes: vertices, and the classes on both sides."""
        sides = self.labels[self.edges.regions]
        apart = (self.edges.regions >= 0).all(axis=1) & (sides[:, 0] != sides[:, 1])
        return self.edges.vertices[apart], sides[apart]

    def boundary(self, a: int | None = None, b: int | None = None) -> np.ndarray:
        """Return the boundaries, of class `a`, with class `b`, `(n, 2, 2)` in plane coordinates."""
        ends, sides = self.apart
        chosen = np.ones(len(sides), bool)
        for label in {a, b} - {None}:
            chosen &= (sides == label).any(axis=1)
        return self.vertices[ends[chosen]]

    def plot(self, ax: Axes | None = None, regions: bool = False) -> Axes:
        """Draw the classes, and the exact boundaries between them; or also those of `regions`."""
        ax = new_axes(ax, (5.5, 5))
        corners = np.split(self.vertices[self.loop], self.start[1:-1])
        colours = [f"C{label % 10}" for label in self.labels]
        edges = "#ffffff" if regions else colours
        # Faces have a border in their own colour, to close gaps of less than a pixel.
        faces = PolyCollection(corners, facecolors=colours, edgecolors=edges, linewidths=0.15)
        ax.add_collection(faces)
        ax.add_collection(LineCollection(list(self.boundary()), colors="black", linewidths=0.8))
        handles = [
            Patch(color=f"C{label % 10}", label=f"{label}: {100 * self.area(label):.3g} %")
            for label in np.unique(self.labels)
        ]
        low, wide = self.corners.min(axis=0), np.ptp(self.corners, axis=0)
        first, last = low - 0.03 * wide, low + 1.03 * wide
        ax.set(xlim=(first[0], last[0]), ylim=(first[1], last[1]))
        if wide.max() < 10 * wide.min():  # unless the polygon is very thin
            ax.set_aspect("equal")
        ax.set(xlabel="first direction of the plane", ylabel="second direction")
        # Beside the axes, because a search for a free place inside them would be slow.
        beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)}
        beside |= {"frameon": False, "fontsize": 7, "title_fontsize": 7}
        ax.legend(handles=handles, title="class: share", **beside)
        return ax
