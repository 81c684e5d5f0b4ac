"""Exact lines through average and maximum pooling."""

from functools import cached_property

import numpy as np

from nnslicer_tf.exactline.bends import Bends, GradientTransformer, is_largest_tap, largest_tap
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.rules.table import register_transformer
from nnslicer_tf.exactline.steps import MAX_GATHERED, Steps, Uses
from nnslicer_tf.instrument.operations import Operation


class AverageLine:
    """The transformer of average pooling: the mean of each window, ignoring padding."""

    def __init__(self, operation: Operation) -> None:
        self._taps = operation.params.taps
        self._counts = (self._taps >= 0).sum(axis=1)[:, None]
        self._input_shape = operation.input_shapes[0]

    def __call__(self, x: Curve) -> Curve:
        """Return the curve of the means."""
        x = x.regrouped(self._input_shape)
        rows = x.common_rows([x], [self._taps])
        taps = self._taps.shape[1]
        piece = max(1, MAX_GATHERED // (taps * x.channels))
        out = np.empty((len(rows), x.channels))
        for first in range(0, len(rows), piece):
            gathered = rows.gather(0, first, min(first + piece, len(rows)))
            gathered.reshape(-1, taps, x.channels).sum(axis=1, out=out[first : first + piece])
        totals = rows.curve(out)
        return totals.with_values(out / totals.rows_of(self._counts))

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradient of the input, given that of the means."""
        return [g.scaled(1 / self._counts).moved(self._uses, g.channels)]

    @cached_property
    def _uses(self) -> Uses:
        return Uses.of(self._taps, int(np.prod(self._input_shape[:-1])))


class MaximumLine(GradientTransformer):
    """The transformer of max pooling, with points where another value becomes the maximum.

    With a floor of 0, it combines max pooling and ReLU (appendix G); crossings below the window's
    maximum then add no points.
    """

    def __init__(self, operation: Operation) -> None:
        taps = operation.params.taps
        # Padding is ignored by replacing it with a value of the window.
        valid = np.take_along_axis(taps, np.argmax(taps >= 0, axis=1)[:, None], axis=1)
        self._taps = np.where(taps >= 0, taps, valid)
        self._input_shape = operation.input_shapes[0]
        self.floor = -np.inf

    @property
    def bends(self) -> Bends:
        """Bends at which another value of a window becomes its maximum."""
        return Bends(self._taps.shape[1], np.array([self.floor]))

    def window(self, x: Curve) -> Curve:
        """Return the values of each window, side by side."""
        x = x.regrouped(self._input_shape)
        return x.common_rows([x], [self._taps]).gathered()[0]

    def finish(self, window: Curve) -> Curve:
        """Return the windows' maxima."""
        maxima = largest_tap(window.values, self._taps.shape[1])
        return window.with_values(np.maximum(maxima, self.floor, out=maxima))

    def slopes(self, middles: Curve) -> np.ndarray:
        """Return 1 for the tap with the largest value, 0 for all others."""
        return is_largest_tap(middles.values, self._taps.shape[1], self.floor)

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradient of the input, given that of the windows."""
        return [g.moved(self._uses, g.channels // self._taps.shape[1])]

    @cached_property
    def _uses(self) -> Uses:
        return Uses.of(self._taps, int(np.prod(self._input_shape[:-1])))


register_transformer("average", AverageLine)
register_transformer("maximum", MaximumLine)
