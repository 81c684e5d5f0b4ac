"""Transformers of operations on exact lines and planes: base classes, and a table by kind."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.exactline._kernels import lines as _kernels
from nnslicer_tf.exactline.curve import TOLERANCE, Curve
from nnslicer_tf.exactline.steps import Steps
from nnslicer_tf.instrument import Operation

_Crossings = tuple[np.ndarray, np.ndarray]  # rows, and shares of the way to the next row


class Bends(NamedTuple):
    """Bends of an operation: points at which another value becomes the largest.

    A window has `taps · channels` values, and each channel the maximum over its taps and a floor. A
    function of single values has one tap, and its knots as floors.
    """

    taps: int  # number of values over which each maximum is taken
    floors: np.ndarray  # (floors,) float64 constants; -inf for a maximum without a constant

    def crossings(self, window: Curve) -> _Crossings:
        """Return the bends on lines, as arguments of `Curve.insert`."""
        inside = np.ones((len(window.ratio) - 1, 1), bool)
        inside[window.start[1:-1] - 1] = False  # between the rows of two segments
        find = self._passed_knots if self.taps == 1 else self._changed_maxima
        found = [(np.empty(0, np.int64), np.empty(0)), *find(window.values, inside)]
        left, alpha = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((alpha, left))
        return _kernels.distinct(left[order], alpha[order], window.ratio, TOLERANCE)

    def _passed_knots(self, values: np.ndarray, inside: np.ndarray) -> Iterator[_Crossings]:
        """Yield where values pass each knot."""
        for knot in self.floors:
            below = values < knot
            row, channel = np.nonzero((below[1:] != below[:-1]) & inside)
            before, after = values[row, channel] - knot, values[row + 1, channel] - knot
            yield row, before / (before - after)

    def _changed_maxima(self, values: np.ndarray, inside: np.ndarray) -> Iterator[_Crossings]:
        """Yield where another tap, or the floor, becomes the maximum: first changes first.

        The slope of a maximum of affine functions only grows, so the next maximum is the value with
        a larger slope that meets the current one first.
        """
        taps = values.reshape(len(values), self.taps, -1)
        if np.isfinite(self.floors[0]):
            taps = np.insert(taps, 0, self.floors[0], axis=1)
        best = taps.argmax(axis=1)  # by convexity, the same between two rows if equal at both
        row, channel = np.nonzero((best[1:] != best[:-1]) & inside)
        begin = taps[row, :, channel]
        slopes = taps[row + 1, :, channel] - begin
        now = np.where(begin == begin.max(axis=1, keepdims=True), slopes, -np.inf).argmax(axis=1)
        while len(row):
            value, slope = (x[np.arange(len(row)), now][:, None] for x in (begin, slopes))
            with np.errstate(divide="ignore", invalid="ignore"):
                meets = np.where(slopes > slope, (value - begin) / (slopes - slope), np.inf)
            place = meets.min(axis=1)
            now = np.where(meets == place[:, None], slopes, -np.inf).argmax(axis=1)
            chosen = (place > 0) & (place < 1)
            yield row[chosen], place[chosen]
            more = place < 1
            row, begin, slopes, now = row[more], begin[more], slopes[more], now[more]


class BendingTransformer(ABC):
    """The transformer of an operation that is affine between bends."""

    def __call__(self, *inputs: Curve) -> Curve:
        """Return the output's curve, with points at the bends, for the inputs' curves."""
        window = self.window(*inputs)
        return self.finish(window.insert(*self.bends.crossings(window)))

    @property
    @abstractmethod
    def bends(self) -> Bends:
        """Bends of the operation."""

    @abstractmethod
    def window(self, *inputs: Any) -> Any:
        """Return the values in which to look for bends: a `Curve` or `Points`, like the inputs."""

    @abstractmethod
    def finish(self, window: Any) -> Any:
        """Return the output for a window that has points at all its bends."""


class GradientTransformer(BendingTransformer):
    """A bending transformer that also propagates gradients back along a line."""

    def traced(self, *inputs: Curve) -> tuple[Curve, Steps]:
        """Return the output's curve on one line, and its slopes in the values of the window."""
        window = self.window(*inputs)
        window = window.insert(*self.bends.crossings(window))
        middles = (window.values + np.append(window.values[1:], window.values[-1:], axis=0)) / 2
        last = window.start[1:] - 1  # nothing of the position follows
        middles[last] = middles[last - 1]
        slopes = Steps(window.start, window.ratio, self.slopes(window.with_values(middles)))
        return self.finish(window), slopes.without_repetitions()

    @abstractmethod
    def slopes(self, middles: Curve) -> np.ndarray:
        """Return slopes `(rows, channels of the window)` float64, at values between the rows."""

    @abstractmethod
    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradients of the inputs, given that of the window: the adjoint of `window`."""


def pulls_gradients(transformer: Any) -> bool:
    """Return whether a transformer propagates gradients back, with a method `pull` if affine."""
    if isinstance(transformer, BendingTransformer):
        return isinstance(transformer, GradientTransformer)
    return hasattr(transformer, "pull")


def is_largest_tap(values: np.ndarray, taps: int, floor: float) -> np.ndarray:
    """Return 1 for each channel's first largest tap, if above the floor, else 0, float64."""
    by_tap = values.reshape(len(values), taps, -1)
    chosen = by_tap.argmax(axis=1)[:, None]
    out = np.zeros(by_tap.shape)
    np.put_along_axis(out, chosen, np.take_along_axis(by_tap, chosen, axis=1) > floor, axis=1)
    return out.reshape(values.shape)


def largest_tap(values: np.ndarray, taps: int) -> np.ndarray:
    """Return the maxima `(rows, channels)` of values `(rows, taps · channels)`."""
    channels = values.shape[1] // taps
    largest = values[:, :channels].copy()
    for t in range(1, taps):  # many times faster than a maximum over an axis
        np.maximum(largest, values[:, t * channels : (t + 1) * channels], out=largest)
    return largest


Transformer = Callable[..., Any]
"""Maps the `Curve`s of an operation's inputs to the `Curve` of its output."""

_TRANSFORMERS: dict[str, Callable[[Operation], Transformer]] = {}


def register_transformer(kind: str, build: Callable[[Operation], Transformer]) -> None:
    """Register the transformer of a kind of operation for exact lines.

    `kind` is that of `Step`s, your own or one of `nnslicer_tf.instrument.KINDS`. `build` is called
    once per walker with an operation, and may raise UnsupportedLayerError.
    """
    _TRANSFORMERS[kind] = build


def build_transformer(operation: Operation) -> Transformer:
    """Return an operation's transformer, with a float64 copy of its weights, or raise an error."""
    if operation.kind not in _TRANSFORMERS:
        raise not_piecewise_linear(operation)
    return _TRANSFORMERS[operation.kind](operation)


def not_piecewise_linear(operation: Operation) -> UnsupportedLayerError:
    """Return the error that exact lines raise for an operation."""
    what = getattr(operation.params, "function", type(operation.keras_layer).__name__)
    return UnsupportedLayerError(
        f"Operation '{operation.name}' ({what}) is not piecewise linear: exact lines exist only "
        "for piecewise-linear networks. Replace a smooth function, such as tanh by hard_tanh. If "
        "the function is your own, its kinks could not be located: it is curved, jumps, has kinks "
        "closer than 0.05, differs between units, or does not take float64. If it has kinks, "
        "register its layer with Step('elementwise', function, Elementwise(name, knots=(…)))."
    )
