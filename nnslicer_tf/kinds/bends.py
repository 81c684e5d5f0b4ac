"""`BendingTransformer`: common base of non-affine operations on exact lines and planes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._kernels import lines as _kernels
from nnslicer_tf.kinds.curve import TOLERANCE, Curve


@dataclass(frozen=True)
class Bends:
    """Bends of an operation: points at which another value becomes the largest.

    Attributes:
        taps: Number of values over which each maximum is taken; a window has `taps · channels`
            values, and each channel its own maximum. A function of single values has one tap.
        floors: `(floors,)` constants. Each channel has a maximum with each of them: for a
            function of single values, these are its knots; -inf for a maximum without a constant.
    """

    taps: int
    floors: np.ndarray

    def crossings(self, window: Curve) -> tuple[np.ndarray, np.ndarray]:
        """Return the bends on lines, as arguments of `Curve.insert`."""
        rows = window.values, window.start, window.ratio
        if self.taps == 1:
            return _kernels.knot_crossings(*rows, self.floors, TOLERANCE)
        channels = window.channels // self.taps
        return _kernels.window_crossings(*rows, channels, self.floors[0], TOLERANCE)


class BendingTransformer(ABC):
    """The transformer of an operation that is affine between bends.

    Called with the inputs' `Curve`s, it returns the output's `Curve`, with points at the bends.
    """

    def __call__(self, *inputs: Curve) -> Curve:
        """Return the curve of the output, with points at the bends."""
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


def largest_tap(values: np.ndarray, taps: int) -> np.ndarray:
    """Return the maxima `(rows, channels)` of values `(rows, taps · channels)`."""
    channels = values.shape[1] // taps
    largest = values[:, :channels].copy()
    for t in range(1, taps):  # many times faster than a maximum over an axis
        np.maximum(largest, values[:, t * channels : (t + 1) * channels], out=largest)
    return largest
