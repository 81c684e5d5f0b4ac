"""`BoundaryFollower`: follows decision boundaries in a plane without visiting all its regions.

A boundary is followed with small rectangles, each of which is partitioned exactly. Where the
boundary leaves a rectangle, the next one starts and points in the direction of the boundary.
Rectangles are sized to have about `_REGIONS` regions, in a strip a few regions wide. All of a
rectangle's boundaries are recorded, and those that leave it are followed unless they enter
an earlier one; so the following of a boundary that closes, or meets others, terminates.

Cost: a few visited regions for each that the boundary crosses, however many there are elsewhere.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._files import Archive
from nnslicer_tf._kernels.compiled import is_compiled
from nnslicer_tf.errors import TooManyRegionsError
from nnslicer_tf.exactline._kernels.mesh_faces import cut_faces
from nnslicer_tf.exactline._polygon import Plane
from nnslicer_tf.exactline.partition import Saved
from nnslicer_tf.exactline.planar_partition import PLANE, PlanarPartition, check_plane

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_REGIONS = 200  # regions that a rectangle should have
_FIRST = 1e-2  # length of the first rectangle, relative to the polygon
_SLIM = 5.0  # length of the first rectangle, relative to its width
_SLIMMEST = 60.0
_WIDEST = 2.0
_BACK = 0.02  # share of a rectangle that lies before the point where the boundary enters
_NEAR = 1e-9  # distances that count as zero, relative to a rectangle or the polygon
_BATCH = 256  # points evaluated at a time


@dataclass(frozen=True, eq=False)
class PlanarBoundary(Saved):
    """The decision boundaries in a polygon.

    Attributes:
        origin: Point of the input space with coordinates (0, 0), the polygon's first corner.
        axes: `(2, *input shape)` float64, orthonormal: the directions of the coordinates.
        corners: `(corners, 2)` coordinates of the polygon's corners.
        segments: `(segments, 2, 2)` float64 coordinates of their ends; each is in one region.
        labels: `(segments, 2)` int64 classes on both sides, the lower first.
        visited: Number of regions visited.
    """

    _format = "nnslicer_tf boundary 1"
    _arrays = PLANE | {
        "segments": (np.floating, "segments 2 2"),
        "labels": (np.integer, "segments 2"),
    }
    _numbers = ("visited",)

    origin: np.ndarray
    axes: np.ndarray
    corners: np.ndarray
    segments: np.ndarray
    labels: np.ndarray
    visited: int

    def _check(self, file: Archive) -> None:
        check_plane(self, file)

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.segments)

    def __repr__(self) -> str:
        return f"PlanarBoundary({len(self):,} segments, {self.visited:,} regions visited)"

    @cached_property
    def lengths(self) -> np.ndarray:
        """Euclidean lengths of the segments, `(segments,)`."""
        return np.linalg.norm(self.segments[:, 1] - self.segments[:, 0], axis=1)

    def between(self, a: int, b: int) -> np.ndarray:
        """Return the boundary between two classes, `(n, 2, 2)`."""
        return self.segments[(self.labels == sorted((a, b))).all(axis=1)]

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the points of the input space at coordinates `(n, 2)`: `(n, *input shape)`."""
        return Plane(self.origin, self.axes, self.corners).at(places)

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per pair of classes: segments, and length."""
        import pandas as pd

        pairs, index = np.unique(self.labels, axis=0, return_inverse=True)
        index = index.ravel()
        return pd.DataFrame(
            {
                "class": pairs[:, 0],
                "other": pairs[:, 1],
                "segments": np.bincount(index, minlength=len(pairs)),
                "length": np.bincount(index, self.lengths, minlength=len(pairs)),
            }
        )

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the boundaries, and the polygon around them."""
        from nnslicer_tf.report import plot_boundary

        return plot_boundary(self, ax)


@dataclass(frozen=True)
class _Front:
    """A place where a boundary continues.

    Attributes:
        place: `(2,)`.
        direction: `(2,)` of length 1; None if unknown.
        size: Length of the rectangle to try.
        slim: Its length relative to its width.
    """

    place: np.ndarray
    direction: np.ndarray | None
    size: float
    slim: float


@dataclass(frozen=True)
class _Rectangle:
    """A rectangle in the plane.

    Attributes:
        centre: `(2,)`.
        along: `(2,)` of length 1: the direction of its length.
        half: `(2,)` half of its length and of its width.
    """

    centre: np.ndarray
    along: np.ndarray
    half: np.ndarray

    @property
    def axes(self) -> np.ndarray:
        """Directions of its length and its width."""
        return np.array([self.along, [-self.along[1], self.along[0]]])

    @property
    def corners(self) -> np.ndarray:
        """Its corners `(4, 2)`, counter-clockwise."""
        signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
        return self.centre + (signs * self.half) @ self.axes

    def outside(self, segments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts of segments `(n, 2, 2)` outside of it, and the index of each segment."""
        own = (segments - self.centre) @ self.axes.T
        begin, step = own[:, 0], own[:, 1] - own[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = (-self.half - begin) / step, (self.half - begin) / step
        enters = np.nan_to_num(np.minimum(low, high), nan=-np.inf)
        leaves = np.nan_to_num(np.maximum(low, high), nan=np.inf)
        beside = ((step == 0) & (np.abs(begin) >= self.half)).any(axis=1)
        first, last = np.maximum(enters.max(axis=1), 0), np.minimum(leaves.min(axis=1), 1)
        apart = beside | (first >= last)
        kept, which = [segments[apart]], [np.flatnonzero(apart)]
        span = segments[:, 1] - segments[:, 0]
        before, after = ~apart & (first > _NEAR), ~apart & (last < 1 - _NEAR)
        heads = segments[:, 0] + first[:, None] * span
        tails = segments[:, 0] + last[:, None] * span
        kept += [
            np.stack([segments[before, 0], heads[before]], axis=1),
            np.stack([tails[after], segments[after, 1]], axis=1),
        ]
        which += [np.flatnonzero(before), np.flatnonzero(after)]
        return np.concatenate(kept), np.concatenate(which)


class _Rectangles:
    """A spatial index of many thousands of rectangles."""

    def __init__(self) -> None:
        self._all: list[_Rectangle] = []
        self._centres, self._alongs, self._halves = (np.empty((0, 2)) for _ in range(3))

    def add(self, one: _Rectangle) -> None:
        """Add a rectangle."""
        self._all.append(one)
        self._centres = np.vstack([self._centres, one.centre])
        self._alongs = np.vstack([self._alongs, one.along])
        self._halves = np.vstack([self._halves, one.half])

    def cover(self, place: np.ndarray) -> bool:
        """Return whether a place is in any of them, and not on its border."""
        x, y = (place - self._centres).T
        along_x, along_y = self._alongs.T
        inner = np.abs([x * along_x + y * along_y, y * along_x - x * along_y])
        return bool((inner < self._halves.T * (1 - _NEAR)).all(axis=0).any())

    def near(self, one: _Rectangle) -> list[_Rectangle]:
        """Return those that may overlap a rectangle."""
        distances = np.linalg.norm(self._centres - one.centre, axis=1)
        reaches = np.linalg.norm(self._halves, axis=1) + np.linalg.norm(one.half)
        return [self._all[i] for i in np.flatnonzero(distances < reaches)]


@dataclass(frozen=True)
class _Found:
    """The contents of a rectangle.

    Attributes:
        rectangle: The rectangle.
        regions: Number of regions.
        segments: `(n, 2, 2)` boundaries.
        labels: `(n, 2)` classes on both sides.
        exits: Places on its border where boundaries leave, with their directions.
    """

    rectangle: _Rectangle
    regions: int
    segments: np.ndarray
    labels: np.ndarray
    exits: list[tuple[np.ndarray, np.ndarray]]


class BoundaryFollower:
    """Follows the decision boundaries in one polygon.

    Args:
        plane: The polygon.
        values: Returns the logits `(n, classes)` at inputs.
        partition: Returns the partition of a small polygon, or raises TooManyRegionsError if it
            has more than the given number of regions.
        workers: Number of threads.
    """

    def __init__(
        self,
        plane: Plane,
        values: Callable[[np.ndarray], np.ndarray],
        partition: Callable[[Plane, int], PlanarPartition],
        workers: int,
    ) -> None:
        self._plane = plane
        self._values = values
        self._partition = partition
        self._workers = workers
        self._size = float(np.ptp(plane.corners, axis=0).max())
        self._rectangles = _Rectangles()
        self._segments: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._visited = 0
        self._density = 0.0  # regions per area in the last rectangle

    def follow(self, seeds: int, most: int | None, progress: bool) -> PlanarBoundary:
        """Return the boundaries.

        Args:
            seeds: Points of the grid along the longer side.
            most: Largest number of regions to visit; None for no limit.
            progress: Whether to show a progress bar.

        Raises:
            TooManyRegionsError: if there are more.
        """
        fronts = [_Front(place, None, _FIRST * self._size, _SLIM) for place in self._entries(seeds)]
        desc = "Boundary" if is_compiled(cut_faces) else "Compiling"
        bar = tqdm(desc=desc, unit=" segments", disable=not progress, leave=False)
        with bar, ThreadPoolExecutor(self._workers) as pool:
            while fronts:
                batch = self._next(fronts)
                for found in pool.map(self._look, batch):
                    bar.set_description("Boundary", refresh=False)
                    fronts += self._record(found)
                    bar.update(sum(map(len, self._segments)) - bar.n)
                    bar.set_postfix_str(f"{self._visited:,} regions, {len(fronts)} ends")
                if most is not None and self._visited > most:
                    raise TooManyRegionsError(
                        f"More than {most:,} regions were visited: {self._visited:,}, with "
                        f"{sum(map(len, self._segments)):,} segments of boundaries, and "
                        f"{len(fronts)} ends to follow. Choose a smaller polygon, or a larger "
                        "max_regions."
                    )
        segments = np.concatenate([np.empty((0, 2, 2)), *self._segments])
        labels = np.concatenate([np.empty((0, 2), np.int64), *self._labels])
        plane = self._plane
        return PlanarBoundary(
            plane.origin, plane.axes, plane.corners, segments, labels, self._visited
        )

    def _entries(self, seeds: int) -> list[np.ndarray]:
        """Return a place on a boundary between any two grid neighbours that differ in class."""
        low, wide = self._plane.corners.min(axis=0), np.ptp(self._plane.corners, axis=0)
        count = np.maximum(np.rint(seeds * wide / wide.max()).astype(int), 2)
        lines = [low[i] + wide[i] * (np.arange(n) + 0.5) / n for i, n in enumerate(count)]
        grid = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1)
        inside = _inside(self._plane.corners, grid.reshape(-1, 2)).reshape(grid.shape[:2])
        labels = np.full(inside.shape, -1)
        labels[inside] = self._classes(grid[inside])
        pairs = []
        for before, after in ((np.s_[:-1], np.s_[1:]), (np.s_[:, :-1], np.s_[:, 1:])):
            differ = (labels[before] != labels[after]) & inside[before] & inside[after]
            pairs.append(np.stack([grid[before][differ], grid[after][differ]], axis=1))
        ends = np.concatenate(pairs)
        if not len(ends):
            return []
        first = self._classes(ends[:, 0])
        for _ in range(24):  # halve until the place is exact to 1e-8 of the distance
            middle = ends.mean(axis=1)
            same = self._classes(middle) == first
            ends[same, 0], ends[~same, 1] = middle[same], middle[~same]
        return list(ends.mean(axis=1))

    def _classes(self, places: np.ndarray) -> np.ndarray:
        parts = np.split(places, range(_BATCH, len(places), _BATCH))
        return np.concatenate([self._values(self._plane.at(p)).argmax(axis=1) for p in parts])

    def _next(self, fronts: list[_Front]) -> list[_Front]:
        """Pop some fronts that no rectangle covers and that are far from each other."""
        batch: list[_Front] = []
        later = []
        while fronts and len(batch) < self._workers:
            front = fronts.pop()
            if self._rectangles.cover(front.place):
                continue
            if front.direction is None and self._density:
                size = np.sqrt(_REGIONS / self._density * front.slim)
                front = replace(front, size=min(float(size), front.size))
            apart = [np.abs(front.place - one.place).max() for one in batch]
            reach = [front.size + one.size for one in batch]
            if all(d > r for d, r in zip(apart, reach, strict=True)):
                batch.append(front)
            else:
                later.append(front)
        fronts += later
        return batch

    def _look(self, front: _Front) -> _Found:
        """Partition a rectangle at a front, shrinking it until it has few regions."""
        size = front.size
        while True:
            rectangle = _rectangle(front, size)
            corners = _clipped(rectangle.corners, self._plane.corners)
            small = Plane(
                self._plane.at(rectangle.centre[None])[0],
                self._plane.axes,
                corners - rectangle.centre,
            )
            try:
                return self._found(rectangle, self._partition(small, 4 * _REGIONS))
            except TooManyRegionsError:
                size /= 2

    def _found(self, rectangle: _Rectangle, partition: PlanarPartition) -> _Found:
        classes = partition.classify()
        edges = classes.edges
        sides = classes.labels[edges.regions]
        apart = (edges.regions >= 0).all(axis=1) & (sides[:, 0] != sides[:, 1])
        ends, border = (
            edges.vertices[apart],
            np.unique(edges.vertices[(edges.regions < 0).any(axis=1)]),
        )
        places = classes.vertices + rectangle.centre
        exits = []
        for i, k in np.argwhere(np.isin(ends, border)):
            place, other = places[ends[i, k]], places[ends[i, 1 - k]]
            length = np.linalg.norm(place - other)
            if length > 0 and self._depth(place) > _NEAR * self._size:
                exits.append((place, (place - other) / length))
        return _Found(rectangle, len(partition), places[ends], np.sort(sides[apart], axis=1), exits)

    def _depth(self, place: np.ndarray) -> float:
        """Return how far a place is from the polygon's border."""
        corners = self._plane.corners
        edges = np.roll(corners, -1, axis=0) - corners
        steps = place - corners
        off = edges[:, 0] * steps[:, 1] - edges[:, 1] * steps[:, 0]
        return float((off / np.linalg.norm(edges, axis=1)).min())

    def _record(self, found: _Found) -> list[_Front]:
        """Record what is new in a rectangle, and return where boundaries leave it."""
        segments, labels = found.segments, found.labels
        for old in self._rectangles.near(found.rectangle):
            segments, which = old.outside(segments)
            labels = labels[which]
        self._segments.append(segments)
        self._labels.append(labels)
        self._visited += found.regions
        self._rectangles.add(found.rectangle)
        self._density = found.regions / (4 * found.rectangle.half.prod())
        return [
            self._following(found, place, direction)
            for place, direction in found.exits
            if not self._rectangles.cover(place)
        ]

    def _following(self, found: _Found, place: np.ndarray, direction: np.ndarray) -> _Front:
        """Return the front at an exit: slimmer if at the far end, wider if at a side."""
        length, width = 2 * found.rectangle.half
        ahead = (place - found.rectangle.centre) @ found.rectangle.along
        far = ahead > found.rectangle.half[0] * (1 - _NEAR)
        slim = np.clip(length / width * (1.5 if far else 0.8), _WIDEST, _SLIMMEST)
        area = length * width * np.clip(_REGIONS / found.regions, 0.25, 4.0)
        size = min(np.sqrt(area * slim), 0.1 * self._size)
        return _Front(place, direction, float(size), float(slim))


def _rectangle(front: _Front, size: float) -> _Rectangle:
    """Return the rectangle of a given length that starts at a front, or a square around it."""
    if front.direction is None:
        half = np.full(2, size / 2 / np.sqrt(front.slim))
        return _Rectangle(front.place, np.array([1.0, 0.0]), half)
    centre = front.place + (0.5 - _BACK) * size * front.direction
    return _Rectangle(centre, front.direction, np.array([size / 2, size / 2 / front.slim]))


def _inside(corners: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return which places `(n, 2)` are in a convex polygon."""
    edges = np.roll(corners, -1, axis=0) - corners
    steps = places[:, None] - corners
    return (edges[:, 0] * steps[..., 1] - edges[:, 1] * steps[..., 0] >= 0).all(axis=1)


def _clipped(corners: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return the intersection of two convex polygons."""
    for a, b in zip(by, np.roll(by, -1, axis=0), strict=True):
        off = (b[0] - a[0]) * (corners[:, 1] - a[1]) - (b[1] - a[1]) * (corners[:, 0] - a[0])
        kept = []
        for i in range(len(corners)):
            j = (i + 1) % len(corners)
            if off[i] >= 0:
                kept.append(corners[i])
            if (off[i] > 0 > off[j]) or (off[i] < 0 < off[j]):
                kept.append(corners[i] + off[i] / (off[i] - off[j]) * (corners[j] - corners[i]))
        corners = np.array(kept)
    return corners
