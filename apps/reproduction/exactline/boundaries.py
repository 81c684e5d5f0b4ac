"""Decision boundaries in a plane, followed without visiting all its regions.

Small rectangles, each partitioned exactly, follow a boundary. Where it leaves a rectangle, the next
one starts, pointing in its direction, with about `_REGIONS` regions in a narrow strip. All of a
rectangle's boundaries are recorded and followed unless they enter an earlier rectangle. A few
regions are visited for each one that a boundary crosses.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from nnslicer_tf._checks import check_count, counted
from nnslicer_tf._environment import available_cores, one_thread_a_product, progress_bar
from nnslicer_tf.errors import InvalidArgumentError, TooManyRegionsError
from nnslicer_tf.exactline import PlanarPartition, PlaneWalker
from nnslicer_tf.exactline.mesh import MAX_TAPS
from nnslicer_tf.exactline.planar_partition import Plane
from nnslicer_tf.exactline.plane import partition
from nnslicer_tf.exactline.tiles import forward
from nnslicer_tf.instrument.model import ModelLike

_REGIONS = 200  # regions that a rectangle should have
_FIRST_LENGTH = 1e-2  # of the first rectangle, relative to the polygon
_MAX_LENGTH = 0.1
_FIRST_SLIMNESS = 5.0  # length of the first rectangle, relative to its width
_MIN_SLIMNESS, _MAX_SLIMNESS = 2.0, 60.0
_BACK = 0.02  # share of a rectangle that lies before the point where the boundary enters
_NEAR = 1e-9  # distances that count as zero, relative to a rectangle or the polygon
_BATCH = 256  # points evaluated at a time


@dataclass(frozen=True, eq=False)
class Boundaries:
    """The decision boundaries in a polygon."""

    plane: Plane  # the polygon
    segments: np.ndarray  # (segments, 2, 2) float64 coordinates of their ends; each in one region
    labels: np.ndarray  # (segments, 2) int64 classes on both sides, the lower first
    visited: int  # number of regions visited

    def __repr__(self) -> str:
        segments = counted(len(self.segments), "segment")
        return f"Boundaries({segments}, {counted(self.visited, 'region')} visited)"

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per pair of classes: segments, and length."""
        lengths = np.linalg.norm(self.segments[:, 1] - self.segments[:, 0], axis=1)
        table = pd.DataFrame(self.labels, columns=["class", "other"]).assign(length=lengths)
        pairs = table.groupby(["class", "other"], as_index=False)
        return pairs.agg(segments=("length", "size"), length=("length", "sum"))


class _Front(NamedTuple):
    """A place `(2,)` where a boundary continues, and its unit direction `(2,)` if known."""

    place: np.ndarray
    direction: np.ndarray | None
    length: float  # of the rectangle to try
    slimness: float  # its length relative to its width


class _Rectangle(NamedTuple):
    """A rectangle: its centre, the direction of its length, half of its length and width."""

    centre: np.ndarray
    along: np.ndarray
    half: np.ndarray

    @property
    def axes(self) -> np.ndarray:
        return np.array([self.along, [-self.along[1], self.along[0]]])

    def outside(self, segments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts of segments `(n, 2, 2)` outside of it, and the index of each segment."""
        inner = (segments - self.centre) @ self.axes.T
        begin, step = inner[:, 0], inner[:, 1] - inner[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = (-self.half - begin) / step, (self.half - begin) / step
        enters = np.nan_to_num(np.minimum(low, high), nan=-np.inf)
        leaves = np.nan_to_num(np.maximum(low, high), nan=np.inf)
        beside = ((step == 0) & (np.abs(begin) >= self.half)).any(axis=1)
        first, last = np.maximum(enters.max(axis=1), 0), np.minimum(leaves.min(axis=1), 1)
        apart = beside | (first >= last)
        before, after = ~apart & (first > _NEAR), ~apart & (last < 1 - _NEAR)
        span = segments[:, 1] - segments[:, 0]
        heads = segments[:, 0] + first[:, None] * span
        tails = segments[:, 0] + last[:, None] * span
        parts = [
            segments[apart],
            np.stack([segments[before, 0], heads[before]], axis=1),
            np.stack([tails[after], segments[after, 1]], axis=1),
        ]
        index = [np.flatnonzero(chosen) for chosen in (apart, before, after)]
        return np.concatenate(parts), np.concatenate(index)


def follow(
    model: ModelLike,
    polygon: np.ndarray,
    *,
    seeds: int = 32,
    max_regions: int | None = None,
    progress: bool = False,
) -> Boundaries:
    """Follow the decision boundaries in a polygon, visiting only the regions near them.

    Boundaries are exact. Each is entered between two grid points of different classes, so one that
    separates no grid points is missed.

    Args:
        model: As for `PlaneWalker`.
        polygon: As for `exact_plane`.
        seeds: Grid points along the longer side.
        max_regions: Stop with an error if more regions have to be visited.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if the output is not a vector of 2 to 64 values. Further errors are
            those of `exact_plane`.
    """
    check_count("seeds", seeds)
    if max_regions is not None:
        check_count("max_regions", max_regions)
    program = PlaneWalker(model).program
    shape = program.output_shape
    if len(shape) != 1 or not 2 <= shape[0] <= MAX_TAPS:
        raise InvalidArgumentError(
            f"Decision boundaries need a model whose output is a vector of 2 to {MAX_TAPS} "
            f"values. Received outputs of shape {shape}"
        )
    plane = Plane.through(polygon, program.input_shape)
    workers = available_cores()
    size = float(np.ptp(plane.corners, axis=0).max())
    rectangles = np.empty((0, 3, 2))  # many thousands, each a `_Rectangle`
    segments, labels = [np.empty((0, 2, 2))], [np.empty((0, 2), np.int64)]
    visited, found, density = 0, 0, 0.0  # regions; segments; regions per area

    def is_covered(place: np.ndarray) -> bool:
        """Return whether a place is in any rectangle, and not on its border."""
        centre, along, half = rectangles.swapaxes(0, 1)
        (x, y), (along_x, along_y) = (place - centre).T, along.T
        inner = np.abs([x * along_x + y * along_y, y * along_x - x * along_y])
        return bool((inner < half.T * (1 - _NEAR)).all(axis=0).any())

    def look(front: _Front) -> tuple[_Rectangle, PlanarPartition]:
        """Partition a rectangle at a front, shrinking it until it has few regions."""
        length = front.length
        while True:
            if front.direction is None:  # a square around it
                half = np.full(2, length / 2 / np.sqrt(front.slimness))
                rectangle = _Rectangle(front.place, np.array([1.0, 0.0]), half)
            else:
                centre = front.place + (0.5 - _BACK) * length * front.direction
                half = np.array([length / 2, length / 2 / front.slimness])
                rectangle = _Rectangle(centre, front.direction, half)
            signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
            corners = rectangle.centre + (signs * rectangle.half) @ rectangle.axes
            corners = clipped(corners, plane.corners) - rectangle.centre
            small = Plane(plane.at(rectangle.centre[None])[0], plane.axes, corners)
            try:
                return rectangle, partition(program, small, 4 * _REGIONS, workers=1)
            except TooManyRegionsError:
                length /= 2

    def record(rectangle: _Rectangle, regions: PlanarPartition) -> list[_Front]:
        """Record what is new in a rectangle, and return where boundaries leave it."""
        nonlocal visited, found, density, rectangles
        classes = regions.classify()
        edges = classes.edges
        ends, sides = classes.apart
        places = classes.vertices + rectangle.centre
        new, pairs = places[ends], np.sort(sides, axis=1)
        # Of the rectangles before it, those that it may overlap.
        centre, _, half = rectangles.swapaxes(0, 1)
        distances = np.linalg.norm(centre - rectangle.centre, axis=1)
        reaches = np.linalg.norm(half, axis=1) + np.linalg.norm(rectangle.half)
        for row in rectangles[distances < reaches]:
            new, index = _Rectangle(*row).outside(new)
            pairs = pairs[index]
        segments.append(new)
        labels.append(pairs)
        visited, found = visited + len(regions), found + len(new)
        rectangles = np.concatenate([rectangles, np.stack(rectangle)[None]])
        density = len(regions) / (4 * rectangle.half.prod())

        fronts = []
        border = np.unique(edges.vertices[(edges.regions < 0).any(axis=1)])
        for i, k in np.argwhere(np.isin(ends, border)):
            place, other = places[ends[i, k]], places[ends[i, 1 - k]]
            distance = np.linalg.norm(place - other)
            depth = _depths(plane.corners, place[None]).min()
            if not distance or depth <= _NEAR * size or is_covered(place):
                continue
            # The next rectangle is slimmer after the far end, wider after a side.
            length, width = 2 * rectangle.half
            ahead = (place - rectangle.centre) @ rectangle.along
            far = ahead > rectangle.half[0] * (1 - _NEAR)
            slimness = length / width * (1.5 if far else 0.8)
            slimness = float(np.clip(slimness, _MIN_SLIMNESS, _MAX_SLIMNESS))
            area = length * width * np.clip(_REGIONS / len(regions), 0.25, 4.0)
            length = min(float(np.sqrt(area * slimness)), _MAX_LENGTH * size)
            fronts.append(_Front(place, (place - other) / distance, length, slimness))
        return fronts

    with (
        one_thread_a_product(),
        progress_bar("Boundary", None, progress, unit=" segments") as bar,
        ThreadPoolExecutor(workers) as pool,
    ):
        places = _entries(plane, lambda x: forward(program, x)[0], seeds)
        fronts = [_Front(place, None, _FIRST_LENGTH * size, _FIRST_SLIMNESS) for place in places]
        while fronts:
            # Take some fronts that no rectangle covers and that are far from each other.
            batch: list[_Front] = []
            later: list[_Front] = []
            while fronts and len(batch) < workers:
                front = fronts.pop()
                if is_covered(front.place):
                    continue
                if front.direction is None and density:
                    length = float(np.sqrt(_REGIONS / density * front.slimness))
                    front = front._replace(length=min(length, front.length))
                gaps = ((np.abs(front.place - one.place).max(), one.length) for one in batch)
                apart = [gap > front.length + length for gap, length in gaps]
                (batch if all(apart) else later).append(front)
            fronts += later
            for rectangle, regions in pool.map(look, batch):
                fronts += record(rectangle, regions)
                bar.update(found - bar.n)
                bar.set_postfix_str(f"{counted(visited, 'region')}, {len(fronts)} ends")
            if max_regions is not None and visited > max_regions:
                raise TooManyRegionsError(
                    f"More than {counted(max_regions, 'region')} had to be visited: {visited:,}, "
                    f"with {found:,} segments and {len(fronts)} ends to follow. Choose a smaller "
                    "polygon, or a larger max_regions."
                )
    return Boundaries(plane, np.concatenate(segments), np.concatenate(labels), visited)


def _entries(
    plane: Plane, values: Callable[[np.ndarray], np.ndarray], seeds: int
) -> list[np.ndarray]:
    """Return a place on a boundary between any two neighbours of a grid that differ in class."""

    def classes(places: np.ndarray) -> np.ndarray:
        parts = np.split(places, range(_BATCH, len(places), _BATCH))
        return np.concatenate([values(plane.at(part)).argmax(axis=1) for part in parts])

    low, wide = plane.corners.min(axis=0), np.ptp(plane.corners, axis=0)
    counts = np.maximum(np.rint(seeds * wide / wide.max()).astype(int), 2)
    lines = [low[i] + wide[i] * (np.arange(n) + 0.5) / n for i, n in enumerate(counts)]
    grid = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1)
    depths = _depths(plane.corners, grid.reshape(-1, 2))
    inside: np.ndarray = (depths.min(axis=1) >= 0).reshape(grid.shape[:2])
    labels = np.full(inside.shape, -1)
    labels[inside] = classes(grid[inside])
    pairs = []
    for before, after in ((np.s_[:-1], np.s_[1:]), (np.s_[:, :-1], np.s_[:, 1:])):
        differ = (labels[before] != labels[after]) & inside[before] & inside[after]
        pairs.append(np.stack([grid[before][differ], grid[after][differ]], axis=1))
    ends = np.concatenate(pairs)
    if not len(ends):
        return []
    first = classes(ends[:, 0])
    for _ in range(24):  # halve until the place is exact to 1e-8 of the distance
        middle = ends.mean(axis=1)
        same = classes(middle) == first
        ends[same, 0], ends[~same, 1] = middle[same], middle[~same]
    return list(ends.mean(axis=1))


def _depths(corners: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return how far places `(n, 2)` are from each side of a polygon, positive inside."""
    edges = np.roll(corners, -1, axis=0) - corners
    steps = places[:, None] - corners
    off = edges[:, 0] * steps[..., 1] - edges[:, 1] * steps[..., 0]
    return off / np.linalg.norm(edges, axis=1)


def clipped(corners: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return the intersection of two convex polygons."""
    for a, b in zip(by, np.roll(by, -1, axis=0), strict=True):
        off = (b[0] - a[0]) * (corners[:, 1] - a[1]) - (b[1] - a[1]) * (corners[:, 0] - a[0])
        inside = []
        for i in range(len(corners)):
            j = (i + 1) % len(corners)
            if off[i] >= 0:
                inside.append(corners[i])
            if (off[i] > 0 > off[j]) or (off[i] < 0 < off[j]):
                inside.append(corners[i] + off[i] / (off[i] - off[j]) * (corners[j] - corners[i]))
        corners = np.array(inside)
    return corners
