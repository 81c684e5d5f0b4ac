"""`Plane`: the plane of a convex polygon in a model's input space, with coordinates."""

from typing import NamedTuple

import numpy as np

from nnslicer_tf._checks import check_points
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError

_FLAT = 1e-6  # a point may be this far off the plane, relative to the polygon's size
_THIN = 1e-12  # a polygon is a line if it is no wider, relative to its length


class Plane(NamedTuple):
    """A convex polygon, and orthonormal coordinates in its plane."""

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
            raise InputShapeError(
                f"Planes need inputs of two values or more. Received: input shape {shape}"
            )
        # Corners that repeat the one before, or close the ring, are left out; the first is kept, as
        # coordinates are relative to it.
        flat = flat[np.append(True, np.any(flat[1:] != flat[:-1], axis=1))[: len(flat)]]
        if len(flat) > 1 and np.array_equal(flat[0], flat[-1]):
            flat = flat[:-1]
        if len(flat) < 3:
            raise InvalidArgumentError(
                f"polygon must have three different corners or more. Received: {len(points)} "
                f"points, {len(flat)} of them different from the one before"
            )
        steps = flat - flat[0]
        length = np.linalg.norm(steps, axis=1).max()
        first = steps[1] / np.linalg.norm(steps[1])
        off = steps - np.outer(steps @ first, first)
        widths = np.linalg.norm(off, axis=1)
        if widths.max() <= _THIN * length:
            raise InvalidArgumentError(
                "polygon must have an area. Received: points on one line; exact_line partitions it"
            )
        second = off[np.argmax(widths)] / widths.max()
        second -= (second @ first) * first
        second /= np.linalg.norm(second)
        axes = np.stack([first, second])
        corners = steps @ axes.T
        distance = np.linalg.norm(steps - corners @ axes, axis=1).max()
        if distance > _FLAT * length:
            raise InvalidArgumentError(
                "The points of polygon must lie in one plane. Received: points that are up to "
                f"{distance:.3g} away from it"
            )
        if area_of(corners) < 0:
            axes[1], corners[:, 1] = -axes[1], -corners[:, 1]
        # A convex polygon turns left at every corner, and around once in all.
        edges = np.roll(corners, -1, axis=0) - corners
        following = np.roll(edges, -1, axis=0)
        turns = edges[:, 0] * following[:, 1] - edges[:, 1] * following[:, 0]
        angles = np.arctan2(turns, (edges * following).sum(axis=1))
        if (angles < -1e-9).any() or abs(angles.sum() - 2 * np.pi) > 1e-6:
            raise InvalidArgumentError(
                "polygon must be convex, with its corners in order around it. Divide it into "
                f"convex ones. Received: corners at {np.round(corners, 6).tolist()} in its plane"
            )
        return Plane(points[0], axes.reshape(2, *shape), corners)

    @property
    def area(self) -> float:
        """Area of the polygon."""
        return area_of(self.corners)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the points of the input space at coordinates `(n, 2)`: `(n, *input shape)`."""
        return self.origin + np.tensordot(np.asarray(places, np.float64), self.axes, axes=1)

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """Return the coordinates `(n, 2)` of points `(n, *input shape)` projected on the plane."""
        steps = (np.asarray(x, np.float64) - self.origin).reshape(len(x), -1)
        return steps @ self.axes.reshape(2, -1).T


def area_of(corners: np.ndarray) -> float:
    """Return the area of a polygon `(corners, 2)`, positive if counter-clockwise."""
    x, y = (corners - corners[0]).T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
