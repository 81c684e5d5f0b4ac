"""`Points`: exact values of an operation at points, such as the vertices of a plane's regions."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nnslicer_tf.exactline._kernels import mesh_queries
from nnslicer_tf.exactline.curve import MAX_GATHERED, in_pieces


class Points(NamedTuple):
    """The values of an operation at points, with the methods of `Curve` that affine ones use."""

    number: int  # number of points
    values: np.ndarray  # (positions · number, channels) float64, position after position

    @property
    def positions(self) -> int:
        """Number of positions."""
        return len(self.values) // self.number

    @property
    def channels(self) -> int:
        """Number of values at each position."""
        return self.values.shape[1]

    @property
    def by_position(self) -> np.ndarray:
        """The values as `(positions, points, channels)`."""
        return self.values.reshape(-1, self.number, self.channels)

    @staticmethod
    def of(samples: np.ndarray) -> "Points":
        """Return samples `(points, *shape)` as points."""
        flat = samples.reshape(len(samples), -1, samples.shape[-1]).swapaxes(0, 1)
        return Points(len(samples), np.ascontiguousarray(flat).reshape(-1, flat.shape[-1]))

    def samples(self) -> np.ndarray:
        """Return the values by point, `(points, positions · channels)`."""
        return np.ascontiguousarray(self.by_position.swapaxes(0, 1)).reshape(self.number, -1)

    @staticmethod
    def common_rows(points: "Sequence[Points]", taps: Sequence[np.ndarray]) -> "CommonPoints":
        """Return the values in windows over the positions of several operations."""
        return CommonPoints(points, taps)

    def rows_of(self, table: np.ndarray) -> np.ndarray:
        """Return the table entry of each row's position: `(positions, …)` becomes `(rows, …)`."""
        return table if len(table) == 1 else np.repeat(table, self.number, axis=0)

    def with_values(self, values: np.ndarray) -> "Points":
        """Return points with new values `(rows, channels)` at the same rows."""
        return Points(self.number, values)

    def regrouped(self, shape: tuple[int, ...]) -> "Points":
        """Return the points of the tensor reshaped to `shape`, for example flattened."""
        if (self.positions, self.channels) == (int(np.prod(shape[:-1])), shape[-1]):
            return self
        return Points.of(self.samples().reshape(self.number, *shape))

    def take(self, chosen: np.ndarray) -> "Points":
        """Return the points with the indices `chosen`."""
        values = np.take(self.by_position, chosen, axis=1)
        return Points(len(chosen), values.reshape(-1, self.channels))

    def extended(self, sources: np.ndarray, weights: np.ndarray) -> "Points":
        """Append points between two others, `sources`, at the share `weights` of the way."""
        values = mesh_queries.extended(self.by_position, sources, weights)
        return Points(self.number + len(weights), values.reshape(-1, self.channels))


class CommonPoints:
    """The values in windows over the positions of several operations, as in `CommonRows`."""

    def __init__(self, points: Sequence[Points], taps: Sequence[np.ndarray]) -> None:
        self._points, self._taps = points, taps
        self._number = points[0].number

    def __len__(self) -> int:
        return len(self._taps[0]) * self._number

    def gather(self, index: int, piece: slice) -> np.ndarray:
        """Return one operation's values at the rows of whole windows; see `CommonRows.gather`."""
        taps = self._taps[index][piece.start // self._number : piece.stop // self._number]
        values = self._points[index].by_position[taps]  # (windows, taps, points, channels)
        values[taps < 0] = 0.0
        return values.swapaxes(1, 2).reshape(piece.stop - piece.start, -1)

    def pieces(self, width: int) -> Iterator[slice]:
        """Yield all rows, some windows at a time; see `CommonRows.pieces`."""
        return in_pieces(len(self), max(1, MAX_GATHERED // (width * self._number)) * self._number)

    def gathered(self) -> list[Points]:
        """Return every operation's values at all rows."""
        return [self.curve(self.gather(i, slice(0, len(self)))) for i in range(len(self._points))]

    def curve(self, values: np.ndarray) -> Points:
        """Return points with values `(rows, channels)`."""
        return Points(self._number, values)
