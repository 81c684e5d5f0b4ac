"""`Steps`: the gradient of an output with respect to an operation's values, along a line.

On a line, gradients of a piecewise-linear network are step functions of the ratio. Like a `Curve`,
they are stored by position: one pixel's gradient has a few thousand pieces where that of the whole
input has tens of thousands.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nnslicer_tf.exactline._kernels import steps as _kernels
from nnslicer_tf.exactline.curve import CommonRows


class Uses(NamedTuple):
    """The windows that use each position: the inverse of a table of taps."""

    windows: np.ndarray  # (positions, uses) int32, -1 for none
    taps: np.ndarray  # (positions, uses) int32: the tap by which a window uses the position

    @classmethod
    def of(cls, taps: np.ndarray, positions: int) -> "Uses":
        """Return the uses of `positions` positions by windows with taps `(windows, taps)`."""
        window, tap = np.nonzero(taps >= 0)
        position = taps[window, tap]
        order = np.argsort(position, kind="stable")
        counts = np.bincount(position, minlength=positions)
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        windows = np.full((positions, max(1, counts.max(initial=0))), -1, np.int32)
        by = np.zeros_like(windows)
        windows[position[order], place] = window[order]
        by[position[order], place] = tap[order]
        return cls(windows, by)


class Steps(NamedTuple):
    """Step functions on one line, for each position and channel."""

    start: np.ndarray  # (positions + 1,) int64: position p has the rows start[p] to start[p + 1]
    ratio: np.ndarray  # (rows,) float64, ascending; all positions share the first and the last
    # (rows, channels) float64, up to the next ratio; a position's last row repeats the one before
    values: np.ndarray

    @property
    def lines(self) -> int:
        """Number of lines, for `CommonRows`."""
        return 1

    @property
    def positions(self) -> int:
        """Number of positions."""
        return len(self.start) - 1

    @property
    def channels(self) -> int:
        """Number of values at each position."""
        return self.values.shape[1]

    @classmethod
    def constant(cls, values: np.ndarray, begin: float, end: float) -> "Steps":
        """Return the functions with the same values `(positions, channels)` everywhere."""
        start = 2 * np.arange(len(values) + 1)
        return cls(start, np.tile([begin, end], len(values)), np.repeat(values, 2, axis=0))

    @classmethod
    def joined(cls, parts: Sequence["Steps"]) -> "Steps":
        """Return the functions with given values on consecutive ranges, in any order."""
        if len(parts) == 1:
            return parts[0]
        parts = sorted(parts, key=lambda part: part.ratio[0])
        columns = []
        for part in parts:
            rows = np.ones(len(part.ratio), bool)
            if part is not parts[-1]:
                rows[part.start[1:] - 1] = False  # the next part begins there
            position = np.repeat(np.arange(part.positions), np.diff(part.start))
            columns.append((position[rows], part.ratio[rows], part.values[rows]))
        position, ratio, values = (np.concatenate(x) for x in zip(*columns, strict=True))
        order = np.argsort(position, kind="stable")
        start = np.append(0, np.cumsum(np.bincount(position)))
        return cls(start, ratio[order], values[order]).without_repetitions()

    @classmethod
    def total(cls, parts: Sequence["Steps"]) -> "Steps":
        """Return the sum of functions with the same positions and channels."""
        if len(parts) == 1:
            return parts[0]
        same = np.arange(parts[0].positions, dtype=np.int32)[:, None]
        rows = CommonRows(parts, [same] * len(parts))
        values = np.zeros((len(rows), parts[0].channels))
        for part in parts:
            _kernels.add_moved(part, same, np.zeros_like(same), rows.start, rows.ratio, values)
        return cls(rows.start, rows.ratio, values)

    def between(self, begin: float, end: float) -> "Steps":
        """Return the functions on the range from `begin` to `end`."""
        if begin <= self.ratio[0] and end >= self.ratio[-1]:
            return self
        # At each position: the rows that hold in the range, and the last of them once more.
        holds = (self.ratio < end) & (np.append(self.ratio[1:], np.inf) > begin)
        times = holds.astype(np.int64)
        times[np.flatnonzero(holds)[np.cumsum(np.add.reduceat(times, self.start[:-1])) - 1]] = 2
        start = np.append(0, np.cumsum(np.add.reduceat(times, self.start[:-1])))
        rows = np.repeat(np.arange(len(times)), times)
        ratio = self.ratio[rows]
        ratio[start[:-1]], ratio[start[1:] - 1] = begin, end
        return Steps(start, ratio, self.values[rows])

    def regrouped(self, positions: int, channels: int) -> "Steps":
        """Return the functions of a tensor after reshaping it."""
        if (self.positions, self.channels) == (positions, channels):
            return self
        ratio, values = self.ratio, self.values
        if self.positions > 1:  # at one position first
            ratio = CommonRows([self], [np.arange(self.positions, dtype=np.int32)[None]]).ratio
            values = self.at(np.append((ratio[1:] + ratio[:-1]) / 2, ratio[-1]))
        values = values.reshape(-1, positions, channels).swapaxes(0, 1).reshape(-1, channels)
        return Steps(len(ratio) * np.arange(positions + 1), np.tile(ratio, positions), values)

    def scaled(self, table: np.ndarray) -> "Steps":
        """Return the functions times a table `(positions or 1, channels or 1)`."""
        if len(table) > 1:
            table = np.repeat(table, np.diff(self.start), axis=0)
        return self.with_values(self.values * table)

    def times(self, slopes: "Steps") -> "Steps":
        """Return the products with slopes; if these have more channels, this function's repeat."""
        same = np.arange(self.positions, dtype=np.int32)[:, None]
        rows = CommonRows([self, slopes], [same, same])
        values = _kernels.products(self, slopes, rows.start, rows.ratio)
        return Steps(rows.start, rows.ratio, values)

    def columns(self, first: int, last: int) -> "Steps":
        """Return the functions of the channels from `first` to `last`."""
        return self.with_values(np.ascontiguousarray(self.values[:, first:last]))

    def moved(self, uses: Uses, channels: int) -> "Steps":
        """Return the sums of the windows that use each position: the adjoint of gathering windows.

        The windows are this function's positions. If one has only as many `channels` as one tap,
        all its taps have the same values.
        """
        columns = uses.taps * channels if self.channels > channels else np.zeros_like(uses.taps)
        rows = CommonRows([self], [uses.windows])
        values = np.zeros((len(rows), channels))
        _kernels.add_moved(self, uses.windows, columns, rows.start, rows.ratio, values)
        return Steps(rows.start, rows.ratio, values)

    def with_values(self, values: np.ndarray) -> "Steps":
        """Return functions with new values `(rows, channels)` on the same pieces."""
        return self._replace(values=values)

    def integrals(self) -> np.ndarray:
        """Return the integrals over the ratio, `(positions, channels)`."""
        widths = np.diff(self.ratio, append=0.0)
        widths[self.start[1:] - 1] = 0.0
        return np.add.reduceat(self.values * widths[:, None], self.start[:-1])

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the values at ascending ratios, `(places, positions, channels)`."""
        rows = np.empty((len(places), self.positions), np.int64)
        for position, (first, last) in enumerate(pairwise(self.start)):
            ratio = self.ratio[first:last]
            rows[:, position] = first + np.searchsorted(ratio, places, side="right") - 1
        return self.values[rows]

    def without_repetitions(self) -> "Steps":
        """Return the functions with only the rows at which a value changes, and the ends."""
        changes = np.append(True, (self.values[1:] != self.values[:-1]).any(axis=1))
        changes[self.start[:-1]] = changes[self.start[1:] - 1] = True
        start = np.append(0, np.cumsum(changes))[self.start]
        return Steps(start, self.ratio[changes], self.values[changes])
