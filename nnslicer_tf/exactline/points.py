"""`Points`: exact values of an operation at points, such as the vertices of a plane's regions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnslicer_tf.exactline._kernels import lines, mesh_queries
from nnslicer_tf.exactline.curve import Curve


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
        self._points = points
        self._taps = taps
        self._number = points[0].number

    def __len__(self) -> int:
        return len(self._taps[0]) * self._number

    def gather(self, index: int, first: int, last: int) -> np.ndarray:
        """Return one operation's values at rows `first` to `last`; see `CommonRows.gather`."""
        begin, end = first // self._number, -(-last // self._number)  # the windows of these rows
        taps = self._taps[index][begin:end]
        values = self._points[index].by_position[taps]  # (windows, taps, points, channels)
        values[taps < 0] = 0.0
        rows = values.swapaxes(1, 2).reshape(len(taps) * self._number, -1)
        return rows[first - begin * self._number : last - begin * self._number]

    def window_sums(self, kernel: np.ndarray, bias: np.ndarray, piece: int) -> np.ndarray:
        """Return the weighted sums of the windows; see `CommonRows.window_sums`."""
        points, taps = self._points[0], self._taps[0]
        # As curves of one line, on which every point has its number as ratio.
        ratio, new_ratio = (
            np.tile(np.arange(float(self._number)), count)
            for count in (points.positions, len(taps))
        )
        curve = Curve(1, np.arange(0, len(ratio) + 1, self._number), ratio, points.values)
        new_start = np.arange(0, len(new_ratio) + 1, self._number)
        return lines.window_sums(curve, taps, new_start, new_ratio, kernel, bias, piece)

    def gathered(self) -> list[Points]:
        """Return every operation's values at all rows."""
        return [self.curve(self.gather(i, 0, len(self))) for i in range(len(self._points))]

    def curve(self, values: np.ndarray) -> Points:
        """Return points with values `(rows, channels)`."""
        return Points(self._number, values)
