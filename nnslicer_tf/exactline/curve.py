"""`Curve`: the exact values of an operation along lines.

A curve is piecewise linear in the ratio along each line. It is stored by *position* (the pixels of
a feature map; one for a dense layer): each position has rows only at the ratios at which something
that it depends on changes its affine piece, with the values of all its channels. In early
convolutional layers a position depends on few pixels, so it has few rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnslicer_tf.exactline._kernels import lines as _kernels

MAX_GATHERED = 1 << 17  # Largest number of float64 numbers in a piece of gathered windows: 1 MB
MIN_ROWS = 32  # Smallest number of rows in a piece: products of smaller matrices are inefficient
TOLERANCE = 1e-12  # Ratios in [0, 1] that differ by at most this are treated as equal


class Curve(NamedTuple):
    """The values of an operation along lines, piecewise linear between rows.

    Position p has the rows `start[p · lines + k]` to `start[p · lines + k + 1]` on line k.
    """

    lines: int  # number of lines
    start: np.ndarray  # (positions · lines + 1,) int64
    # (rows,) float64, ascending on a line; all positions share its first and last
    ratio: np.ndarray
    values: np.ndarray  # (rows, channels) float64

    @property
    def positions(self) -> int:
        """Number of positions."""
        return (len(self.start) - 1) // self.lines

    @property
    def channels(self) -> int:
        """Number of values at each position."""
        return self.values.shape[1]

    @staticmethod
    def straight(start: np.ndarray, end: np.ndarray) -> "Curve":
        """Return the curve of lines that have only their ends, `(lines, *input shape)` each."""
        lines, channels = len(start), start.shape[-1]
        ends = np.stack([x.reshape(lines, -1, channels) for x in (start, end)], axis=1)
        values = ends.transpose(2, 0, 1, 3).reshape(-1, channels)  # position, line, end
        rows = 2 * np.arange(len(values) // 2 + 1)
        return Curve(lines, rows, np.tile([0.0, 1.0], len(rows) - 1), values)

    @staticmethod
    def common_rows(curves: "Sequence[Curve]", taps: Sequence[np.ndarray]) -> "CommonRows":
        """Return the common rows of windows over the positions of several curves."""
        return CommonRows(curves, taps)

    def rows_of(self, table: np.ndarray) -> np.ndarray:
        """Return the table entry of each row's position: `(positions, …)` becomes `(rows, …)`."""
        if len(table) == 1:
            return table
        return np.repeat(table, np.diff(self.start[:: self.lines]), axis=0)

    def with_values(self, values: np.ndarray) -> "Curve":
        """Return a curve with new values `(rows, channels)` at the same rows."""
        return self._replace(values=values)

    def insert(self, left: np.ndarray, alpha: np.ndarray) -> "Curve":
        """Return the curve with interpolated rows inserted after the rows `left`, ascending.

        Each lies at the share `alpha`, in (0, 1), of the way to the next row; rows with the same
        `left` are in ascending order.
        """
        if not len(left):
            return self
        order = np.argsort(np.concatenate([np.arange(len(self.ratio)), left]), kind="stable")
        ratio, values = (
            np.concatenate([x, x[left] + share * (x[left + 1] - x[left])])[order]
            for x, share in ((self.ratio, alpha), (self.values, alpha[:, None]))
        )
        return Curve(self.lines, self.start + np.searchsorted(left, self.start), ratio, values)

    def regrouped(self, shape: tuple[int, ...]) -> "Curve":
        """Return the curve of the tensor reshaped to `shape`, for example flattened."""
        positions, channels = int(np.prod(shape[:-1])), shape[-1]
        if (self.positions, self.channels) == (positions, channels):
            return self
        whole = CommonRows([self], [np.arange(self.positions, dtype=np.int32)[None]]).gathered()[0]
        if positions == 1:
            return whole
        rows = len(whole.ratio)
        start = np.append(whole.start[:-1] + rows * np.arange(positions)[:, None], rows * positions)
        values = whole.values.reshape(-1, positions, channels).swapaxes(0, 1).reshape(-1, channels)
        return Curve(self.lines, start, np.tile(whole.ratio, positions), values)

    def line(self, index: int) -> "Curve":
        """Return one of the lines, as a curve with a single position."""
        whole = self.regrouped((self.positions * self.channels,))
        rows = slice(whole.start[index], whole.start[index + 1])
        start = np.array([0, rows.stop - rows.start])
        return Curve(1, start, whole.ratio[rows], whole.values[rows])

    def split_lines(self) -> tuple["Curve", "Curve"]:
        """Return the curves of the first and the second half of the lines."""
        middle = self.lines // 2
        first = np.tile(np.arange(self.lines) < middle, self.positions)
        rows = np.repeat(first, np.diff(self.start))
        return self._part(rows, middle), self._part(~rows, self.lines - middle)

    def split_at(self, place: float) -> tuple["Curve", "Curve"]:
        """Return the parts before and after the ratio `place`, where both have a row."""
        counts = np.add.reduceat((self.ratio <= place).astype(np.int64), self.start[:-1])
        rows = self.start[:-1] + counts - 1  # each segment's last row up to `place`
        rows = rows[self.ratio[rows] < place]
        weights = (place - self.ratio[rows]) / (self.ratio[rows + 1] - self.ratio[rows])
        whole = self.insert(rows, weights)
        whole.ratio[rows + np.arange(1, len(rows) + 1)] = place
        before, after = whole.ratio <= place, whole.ratio >= place
        return whole._part(before, self.lines), whole._part(after, self.lines)

    def _part(self, rows: np.ndarray, lines: int) -> "Curve":
        """Return the curve of the rows, and their segments, that a mask `(rows,)` selects."""
        counts = np.add.reduceat(rows.astype(np.int64), self.start[:-1])
        start = np.concatenate([[0], np.cumsum(counts[counts > 0])])
        return Curve(lines, start, self.ratio[rows], self.values[rows])


class CommonRows:
    """The common rows of windows over the positions of several `Curve`s or `Steps`.

    A window has a row at each ratio at which one of its positions has one. `taps` are, for each
    curve, the positions that the windows read, `(windows, taps)`, -1 for none.
    """

    def __init__(self, curves: Sequence[Any], taps: Sequence[np.ndarray]) -> None:
        self._curves, self._taps = curves, taps
        self.lines = curves[0].lines
        # All curves together, with consecutive positions.
        start = np.append(0, np.cumsum(np.concatenate([np.diff(curve.start) for curve in curves])))
        ratio = np.concatenate([curve.ratio for curve in curves])
        tables = zip(taps, np.cumsum([0, *(curve.positions for curve in curves)]), strict=False)
        shifted = [np.where(table >= 0, table + position, -1) for table, position in tables]
        joined = np.hstack(shifted, dtype=np.int32, casting="unsafe")
        self.start, self.ratio = _kernels.common_rows(start, ratio, joined, self.lines, TOLERANCE)

    def __len__(self) -> int:
        return len(self.ratio)

    def gather(self, index: int, piece: slice) -> np.ndarray:
        """Return one curve's values `(rows, taps · channels)` at some rows; 0 for padding."""
        curve, taps = self._curves[index], self._taps[index]
        out = np.empty((piece.stop - piece.start, taps.shape[1] * curve.channels))
        _kernels.gather(curve, taps, self.start, self.ratio, piece.start, out)
        return out

    def pieces(self, width: int) -> Iterator[slice]:
        """Yield all rows, as many at a time as fit into the cache with `width` values each."""
        return in_pieces(len(self), max(MIN_ROWS, MAX_GATHERED // width))

    def gathered(self) -> list[Curve]:
        """Return every curve's values at all rows."""
        return [self.curve(self.gather(i, slice(0, len(self)))) for i in range(len(self._curves))]

    def curve(self, values: np.ndarray) -> Curve:
        """Return the curve that has these rows, with values `(rows, channels)`."""
        return Curve(self.lines, self.start, self.ratio, values)


def in_pieces(rows: int, size: int) -> Iterator[slice]:
    """Yield consecutive ranges of rows, all of one size except the last."""
    return (slice(first, min(first + size, rows)) for first in range(0, rows, size))
