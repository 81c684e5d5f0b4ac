"""`PlanarPartition`: the exact outputs of a network on a polygon."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._files import Archive
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline._kernels import mesh_edges, mesh_queries
from nnslicer_tf.exactline._polygon import Plane
from nnslicer_tf.exactline.bends import Bends
from nnslicer_tf.exactline.mesh import MOST_TAPS, Mesh, Search, cut
from nnslicer_tf.exactline.partition import Margin, Saved, check_label, least_margin
from nnslicer_tf.exactline.points import Points

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_NOISE = 1e-12  # outputs nearer than this, relative to the largest, count as equal
_SLACK = 1e-9  # a point may be this far outside of the polygon, relative to its size


# The arrays of every result in a plane; see `Saved`.
PLANE: dict[str, tuple[type, str]] = {
    "origin": (np.floating, "..."),
    "axes": (np.floating, "2 ..."),
    "corners": (np.floating, "corners 2"),
}


@dataclass(frozen=True)
class Edges:
    """The edges of the regions of a plane.

    Attributes:
        vertices: `(edges, 2)` int64 indices of their ends.
        regions: `(edges, 2)` int64 the regions on both sides; -1 outside of the polygon.
    """

    vertices: np.ndarray
    regions: np.ndarray

    def __len__(self) -> int:
        return len(self.vertices)

    def __repr__(self) -> str:
        return f"Edges({len(self)}, of which {int((self.regions < 0).sum())} on the border)"


def check_plane(result: Any, file: Archive) -> None:
    """Raise an error for a result just read from a file, whose axes are not of its origin."""
    fits = result.axes.shape == (2, *result.origin.shape)
    file.check(fits, "its axes and its origin have different shapes")


@dataclass(frozen=True, eq=False)
class _Faces:
    """Convex faces in a plane: the base class of partitions and classes.

    Attributes:
        origin: Point of the input space with coordinates (0, 0), the polygon's first corner.
        axes: `(2, *input shape)` float64, orthonormal: the directions of the coordinates.
        corners: `(corners, 2)` coordinates of the polygon's corners, counter-clockwise.
        vertices: `(vertices, 2)` float64 coordinates; neighbouring regions share vertices.
        start: `(regions + 1,)` int64: region i has the corners `start[i]` to `start[i + 1]`.
        loop: `(all regions' corners,)` int64 indices of vertices, counter-clockwise.
    """

    origin: np.ndarray
    axes: np.ndarray
    corners: np.ndarray
    vertices: np.ndarray
    start: np.ndarray
    loop: np.ndarray

    def __len__(self) -> int:
        """Return the number of regions."""
        return len(self.start) - 1

    def region(self, index: int) -> np.ndarray:
        """Return the corners of a region in plane coordinates, `(corners, 2)`."""
        return self.vertices[self.loop[self.start[index] : self.start[index + 1]]]

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the points of the input space at coordinates `(n, 2)`: `(n, *input shape)`."""
        return self._plane.at(places)

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """Return the coordinates `(n, 2)` of inputs `(n, *input shape)` projected on the plane."""
        return self._plane.coordinates(x)

    @cached_property
    def areas(self) -> np.ndarray:
        """The areas of the regions, `(regions,)`, in the units of the input space."""
        return mesh_queries.areas(self.vertices, self.start, self.loop)

    @property
    def total_area(self) -> float:
        """Area of the polygon."""
        return self._plane.area

    @cached_property
    def edges(self) -> Edges:
        """The edges, with the neighbouring regions on both sides."""
        edge_of, ends, _ = mesh_edges.find_edges(self.start, self.loop, len(self.vertices))
        return Edges(ends, mesh_queries.edge_faces(self.start, self.loop, edge_of, len(ends)))

    def mesh(self) -> Mesh:
        """Return the regions as a mesh, which can be cut further."""
        keys = np.arange(1, len(self.vertices) + 1, dtype=np.uint64)
        empty = np.zeros(len(self.loop), np.uint64)
        return Mesh(self.vertices, keys, self.start, self.loop, empty).with_new_edge_keys()

    @property
    def _plane(self) -> Plane:
        return Plane(self.origin, self.axes, self.corners)

    @cached_property
    def _tree(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return mesh_queries.box_tree(self.vertices, self.start, self.loop)

    def locate(self, places: np.ndarray) -> np.ndarray:
        """Return the region of each place `(n, 2)`: `(n,)` int64.

        Raises:
            InvalidArgumentError: if a place is not in the polygon.
        """
        places = np.ascontiguousarray(places, np.float64)
        if places.ndim != 2 or places.shape[1] != 2:
            raise InvalidArgumentError(
                "Places are plane coordinates (n, 2); `coordinates` returns those of inputs. "
                f"Received shape: {places.shape}"
            )
        slack = _SLACK * float(np.ptp(self.corners, axis=0).max())
        found = mesh_queries.locate(
            places, self.vertices, self.start, self.loop, *self._tree, slack
        )
        if (found < 0).any():
            where = places[np.argmax(found < 0)].tolist()
            raise InvalidArgumentError(f"The place {where} is not in the polygon.")
        return found


@dataclass(frozen=True, eq=False)
class PlanarPartition(_Faces, Saved):
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
    _arrays = PLANE | {
        "vertices": (np.floating, "vertices 2"),
        "start": (np.integer, "starts"),
        "loop": (np.integer, "loop"),
        "values": (np.floating, "vertices ..."),
    }

    values: np.ndarray

    def _check(self, file: Archive) -> None:
        check_plane(self, file)
        start, loop = self.start, self.loop
        divides = start[0] == 0 and start[-1] == len(loop) and (np.diff(start) > 0).all()
        file.check(divides, "its 'start' does not divide the corners into regions")
        inside = (loop >= 0).all() and (loop < len(self.vertices)).all()
        file.check(inside, "its 'loop' has indices of vertices that it does not have")

    def __repr__(self) -> str:
        return f"PlanarPartition({len(self):,} regions, input shape {self.origin.shape})"

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per region: corners, area, and the mean of each output."""
        import pandas as pd

        means = self._integrals / np.maximum(self.areas, np.finfo(float).tiny)[:, None]
        columns = {f"mean output {i}": column for i, column in enumerate(means.T)}
        return pd.DataFrame({"corners": np.diff(self.start), "area": self.areas, **columns})

    def outputs(self, places: np.ndarray) -> np.ndarray:
        """Return the network's exact logits at coordinates `(n, 2)`: `(n, *output shape)`.

        Raises:
            InvalidArgumentError: if a place is not in the polygon.
        """
        faces = self.locate(places)
        places = np.ascontiguousarray(places, np.float64)
        found = mesh_queries.interpolated(
            places, faces, self.vertices, self.start, self.loop, self._flat
        )
        return found.reshape(-1, *self.values.shape[1:])

    def slopes(self) -> np.ndarray:
        """Return the gradients of the outputs in plane coordinates, `(regions, outputs, 2)`."""
        return mesh_queries.slopes(self.vertices, self.start, self.loop, self._flat)

    def integrate(self) -> np.ndarray:
        """Return the exact mean of every output over the polygon, of the output's shape."""
        mean = self._integrals.sum(axis=0) / self.areas.sum()
        return mean.reshape(self.values.shape[1:])

    def margin(self, label: int | None = None) -> Margin:
        """Return the exact smallest difference between a class's logit and the largest other one.

        It is negative if another class wins somewhere. On a region the differences are affine, so
        that the smallest is at a vertex.

        Args:
            label: The class; by default that of the first corner.

        Raises:
            InvalidArgumentError: if there is no such class, or the output is not a vector of two
                values or more.
        """
        first = np.argmin(((self.vertices - self.corners[0]) ** 2).sum(axis=1))
        label = check_label(self.values, label, int(first))
        value, place, other = least_margin(self.values, label)
        where = self.vertices[place]
        return Margin(label, other, value, where, self.at(where[None])[0])

    def classify(self, lowest: bool = False) -> "PlanarClasses":
        """Divide the regions along the exact decision boundaries.

        With a single output the classes are 0 (negative) and 1 (positive).

        Args:
            lowest: The class is that of the lowest output, not of the highest.

        Raises:
            InvalidArgumentError: if the output is not a vector, or of more than 64 values.
        """
        return self._classes[lowest] if lowest in self._classes else self._classified(lowest)

    def area(self, label: int) -> float:
        """Return the share of the polygon in which a class wins, in [0, 1]."""
        return self.classify().area(label)

    def boundary(self, a: int, b: int) -> np.ndarray:
        """Return the boundary between two classes: segments `(n, 2, 2)` in plane coordinates."""
        return self.classify().boundary(a, b)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the regions, coloured by class, and the decision boundaries."""
        return self.classify().plot(ax)

    @cached_property
    def _flat(self) -> np.ndarray:
        return np.ascontiguousarray(self.values.reshape(len(self.values), -1))

    @cached_property
    def _integrals(self) -> np.ndarray:
        return mesh_queries.means(self.vertices, self.start, self.loop, self._flat)

    @cached_property
    def _classes(self) -> dict[bool, "PlanarClasses"]:
        return {}

    def _classified(self, lowest: bool) -> "PlanarClasses":
        if self.values.ndim != 2 or self.values.shape[1] > MOST_TAPS:
            raise InvalidArgumentError(
                f"classify needs a model whose output is a vector of up to {MOST_TAPS} values. "
                f"Received outputs of shape {self.values.shape[1:]}"
            )
        scores = -self.values if lowest else self.values
        if scores.shape[1] == 1:
            scores = np.hstack([np.zeros_like(scores), scores])
        mesh, scores = divided(self.mesh(), scores)
        self._classes[lowest] = PlanarClasses(
            self.origin,
            self.axes,
            self.corners,
            mesh.places,
            mesh.start,
            mesh.loop,
            np.argmax(mesh.means(scores), axis=1),
        )
        return self._classes[lowest]


def divided(mesh: Mesh, values: np.ndarray, classes: slice = np.s_[:]) -> tuple[Mesh, np.ndarray]:
    """Return a mesh cut along the decision boundaries, and the values at its vertices.

    Args:
        mesh: The mesh.
        values: `(vertices, outputs)`.
        classes: The outputs to compare, `MOST_TAPS` at most.
    """
    scores = np.ascontiguousarray(values[:, classes])
    bends = Bends(scores.shape[1], np.array([-np.inf]))
    tolerance = _NOISE * float(np.abs(scores).max())
    # One vector at every vertex: a single group of taps, which one cut divides completely.
    new, _ = cut(mesh, Search.of(Points(len(scores), scores), bends, tolerance), 1)
    if new is None:
        return mesh, values
    return new.mesh, new.apply(Points(len(values), np.ascontiguousarray(values))).values


@dataclass(frozen=True, eq=False)
class PlanarClasses(_Faces, ShownAsTable):
    """The regions of a plane, divided along the decision boundaries, each with one class.

    Its attributes are those of a `PlanarPartition`, with labels instead of values.

    Attributes:
        labels: `(regions,)` int64.
    """

    labels: np.ndarray

    def __repr__(self) -> str:
        classes = sorted(set(self.labels.tolist()))
        return f"PlanarClasses({len(self):,} regions of the classes {classes})"

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per class: regions, share of the area, boundary's length."""
        import pandas as pd

        labels = np.unique(self.labels)
        segments, sides = self._between
        lengths = np.linalg.norm(np.diff(segments, axis=1)[:, 0], axis=1)
        return pd.DataFrame(
            {
                "class": labels,
                "regions": [int((self.labels == label).sum()) for label in labels],
                "share": [self.area(label) for label in labels],
                "boundary": [lengths[(sides == label).any(axis=1)].sum() for label in labels],
            }
        )

    def area(self, label: int) -> float:
        """Return the share of the polygon in which a class wins, in [0, 1]."""
        return float(self.areas[self.labels == label].sum() / self.areas.sum())

    def label_at(self, places: np.ndarray) -> np.ndarray:
        """Return the classes at coordinates `(n, 2)`: `(n,)`; at a boundary, either one.

        Raises:
            InvalidArgumentError: if a place is not in the polygon.
        """
        return self.labels[self.locate(places)]

    def boundary(self, a: int | None = None, b: int | None = None) -> np.ndarray:
        """Return the boundaries as segments `(n, 2, 2)` in plane coordinates.

        Args:
            a: Only boundaries of this class.
            b: Only boundaries that also belong to this class.
        """
        segments, sides = self._between
        chosen = np.ones(len(sides), bool)
        for label in (a, b):
            if label is not None:
                chosen &= (sides == label).any(axis=1)
        return segments[chosen]

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the classes, and the exact boundaries between them."""
        from nnslicer_tf.report import plot_plane

        return plot_plane(self, ax=ax)

    @cached_property
    def _between(self) -> tuple[np.ndarray, np.ndarray]:
        """Segments between different classes, and the classes on both sides."""
        edges = self.edges
        sides = self.labels[edges.regions]
        apart = (edges.regions >= 0).all(axis=1) & (sides[:, 0] != sides[:, 1])
        return self.vertices[edges.vertices[apart]], sides[apart]
