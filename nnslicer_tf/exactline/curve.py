"""`Curve`: the exact values of an operation along lines.

A curve is piecewise linear in the ratio along each line. It is stored by *position* (the
pixels of a feature map; one for a dense layer): each position has only those ratios at which
something that it depends on changes its affine piece, and the values of all its channels
there. In an early layer of a convolutional network, a position depends on a small part of the
image, so it has few points, however many there are in total. This saves memory and time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nnslicer_tf.exactline._kernels import lines as _kernels

TOLERANCE = 1e-12
"""Ratios in [0, 1] that differ by at most this are treated as equal."""


@dataclass(frozen=True)
class Curve:
    """The values of an operation along lines.

    Attributes:
        lines: Number of lines.
        start: `(positions · lines + 1,)` int64: the rows of position p on line k are
            `start[p · lines + k]` to `start[p · lines + k + 1]`.
        ratio: `(rows,)` float64, ascending; every position has the same first and last
            ratio on a line.
        values: `(rows, channels)` float64.
    """

    lines: int
    start: np.ndarray
    ratio: np.ndarray
    values: np.ndarray

    @property
    def positions(self) -> int:
        """Number of positions."""
        return (len(self.start) - 1) // self.lines

    @property
    def channels(self) -> int:
        """Number of values at each position."""
        return self.values.shape[1]

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
        return Curve(self.lines, self.start, self.ratio, values)

    def insert(self, left: np.ndarray, alpha: np.ndarray) -> "Curve":
        """Return the curve with interpolated rows inserted after the rows `left`.

        Args:
            left: `(new rows,)` int64, ascending.
            alpha: `(new rows,)` in (0, 1), the place of each between its neighbours; ascending
                for new rows after the same row.
        """
        if not len(left):
            return self
        source, weight, start, ratio = _kernels.insertion(self.start, self.ratio, left, alpha)
        return Curve(self.lines, start, ratio, _kernels.interpolate(self.values, source, weight))

    def regrouped(self, shape: tuple[int, ...]) -> "Curve":
        """Return the curve of a tensor after reshaping it (flattening, for example) to `shape`."""
        positions, channels = int(np.prod(shape[:-1])), shape[-1]
        if (self.positions, self.channels) == (positions, channels):
            return self
        whole = CommonRows([self], [np.arange(self.positions, dtype=np.int32)[None]]).gathered()[0]
        if positions == 1:
            return whole
        rows = len(whole.ratio)
        start = (whole.start[:-1] + rows * np.arange(positions)[:, None]).ravel()
        values = whole.values.reshape(rows, positions, channels).swapaxes(0, 1)
        return Curve(
            self.lines,
            np.append(start, rows * positions),
            np.tile(whole.ratio, positions),
            np.ascontiguousarray(values).reshape(-1, channels),
        )

    def split_lines(self) -> tuple["Curve", "Curve"]:
        """Return the curves of the first and the second half of the lines."""
        middle = self.lines // 2
        first = np.tile(np.arange(self.lines) < middle, self.positions)
        return self._segments(first, middle), self._segments(~first, self.lines - middle)

    def split_at(self, place: float) -> tuple["Curve", "Curve"]:
        """Return the parts before and after the ratio `place`, where both have a row."""
        rows, weights = _kernels.cut(self.start, self.ratio, place)
        at_cut = _kernels.interpolate(self.values, rows, weights)
        before = self._assembled(self.start[:-1], np.where(weights > 0, rows + 1, rows))
        after = self._assembled(rows + 1, self.start[1:])
        return before._appended(place, at_cut), after._prepended(place, at_cut)

    def _segments(self, chosen: np.ndarray, lines: int) -> "Curve":
        lengths = np.diff(self.start)
        rows = np.repeat(chosen, lengths)
        start = np.concatenate([[0], np.cumsum(lengths[chosen])])
        return Curve(lines, start, self.ratio[rows], self.values[rows])

    def _assembled(self, begin: np.ndarray, end: np.ndarray) -> "Curve":
        """Return the rows from `begin` to `end` of every segment."""
        start = np.concatenate([[0], np.cumsum(end - begin)])
        rows = np.repeat(begin - start[:-1], end - begin) + np.arange(start[-1])
        return Curve(self.lines, start, self.ratio[rows], self.values[rows])

    def _appended(self, place: float, values: np.ndarray) -> "Curve":
        start = self.start + np.arange(len(self.start))
        ratio = np.insert(self.ratio, self.start[1:], place)
        return Curve(self.lines, start, ratio, np.insert(self.values, self.start[1:], values, 0))

    def _prepended(self, place: float, values: np.ndarray) -> "Curve":
        start = self.start + np.arange(len(self.start))
        ratio = np.insert(self.ratio, self.start[:-1], place)
        return Curve(self.lines, start, ratio, np.insert(self.values, self.start[:-1], values, 0))


class ByPosition(Protocol):
    """Functions along lines, stored by position: all that `CommonRows` needs; see `Curve`."""

    @property
    def lines(self) -> int:
        """Number of lines."""

    @property
    def positions(self) -> int:
        """Number of positions."""

    @property
    def channels(self) -> int:
        """Number of values at each position."""

    @property
    def start(self) -> np.ndarray:
        """First rows of the positions."""

    @property
    def ratio(self) -> np.ndarray:
        """The rows' ratios."""

    @property
    def values(self) -> np.ndarray:
        """The rows' values."""


class CommonRows:
    """The common rows of windows over the positions of several curves.

    A window has a row at each ratio at which one of its positions has one.

    Args:
        curves: Curves on the same lines.
        taps: For each curve, the positions that the windows read, `(windows, taps)`; -1 for none.
    """

    def __init__(self, curves: Sequence[ByPosition], taps: Sequence[np.ndarray]) -> None:
        self._curves = curves
        self._taps = taps
        self.lines = curves[0].lines
        start, ratio, joined = _stacked(curves, taps)
        self.start, self.ratio = _kernels.common_rows(start, ratio, joined, self.lines, TOLERANCE)

    def __len__(self) -> int:
        return len(self.ratio)

    def gather(self, index: int, first: int, last: int) -> np.ndarray:
        """Return one curve's values at rows `first` to `last`.

        Returns:
            `(rows, taps · channels)`; 0 where a window has no position.
        """
        curve, taps = self._curves[index], self._taps[index]
        out = np.empty((last - first, taps.shape[1] * curve.channels))
        _kernels.gather(
            curve.start,
            curve.ratio,
            curve.values,
            taps,
            self.lines,
            self.start,
            self.ratio,
            first,
            out,
        )
        return out

    def window_sums(self, kernel: np.ndarray, bias: np.ndarray, piece: int) -> np.ndarray:
        """Return the weighted sums of the windows over a single curve, `(rows, outputs)`.

        Args:
            kernel: `(taps · channels, outputs)`.
            bias: `(outputs,)`.
            piece: Number of rows to gather at a time.
        """
        curve, taps = self._curves[0], self._taps[0]
        return _kernels.window_sums(
            curve.start,
            curve.ratio,
            curve.values,
            taps,
            self.lines,
            self.start,
            self.ratio,
            kernel,
            bias,
            piece,
        )

    def gathered(self) -> list[Curve]:
        """Return every curve's values at all rows."""
        return [self.curve(self.gather(i, 0, len(self))) for i in range(len(self._curves))]

    def curve(self, values: np.ndarray) -> Curve:
        """Return the curve that has these rows, with values `(rows, channels)`."""
        return Curve(self.lines, self.start, self.ratio, values)


def _stacked(
    curves: Sequence[ByPosition], taps: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return start, ratio and taps of all curves together, with consecutive positions."""
    if len(curves) == 1:
        return curves[0].start, curves[0].ratio, taps[0]
    rows = np.cumsum([0, *(len(curve.ratio) for curve in curves)])
    positions = np.cumsum([0, *(curve.positions for curve in curves)])
    starts = [curve.start[:-1] + first for curve, first in zip(curves, rows, strict=False)]
    joined = [
        np.where(table >= 0, table + first, -1)
        for table, first in zip(taps, positions, strict=False)
    ]
    return (
        np.concatenate([*starts, rows[-1:]]),
        np.concatenate([curve.ratio for curve in curves]),
        np.hstack(joined),
    )
