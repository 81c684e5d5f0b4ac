"""Exact lines through sums over windows: dense layers, convolutions, average and max pooling."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from nnslicer_tf.exactline import bends
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.steps import Steps, Uses
from nnslicer_tf.instrument.operations import Operation, Synapses


class _WindowLine:
    """A transformer that reads the positions of its table of taps."""

    def __init__(self, operation: Operation) -> None:
        self._taps = operation.params.taps
        self._input_shape = operation.input_shapes[0]

    @cached_property
    def _uses(self) -> Uses:
        return Uses.of(self._taps, int(np.prod(self._input_shape[:-1])))

    def _sums(
        self, x: Curve, taps: np.ndarray, of: Callable[[np.ndarray], np.ndarray], outputs: int
    ) -> Curve:
        """Return the curve of `outputs` sums `of` the values `(rows, taps · channels)`."""
        rows = x.common_rows([x], [taps])
        out = np.empty((len(rows), outputs))
        for piece in rows.pieces(taps.shape[1] * x.channels):
            out[piece] = of(rows.gather(0, piece))
        return rows.curve(out)


class WeightedSumLine(_WindowLine):
    """The transformer of a weighted sum, which adds no points (theorem 1)."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation)
        synapses: Synapses = operation.params
        bias = synapses.bias()
        weights = synapses.variable().numpy().astype(np.float64)
        self._kernel = np.ascontiguousarray(synapses.from_kernel(weights))
        outputs = self._kernel.shape[-1]
        self._bias = np.zeros(outputs) if bias is None else bias.numpy().astype(np.float64)
        self._groups = synapses.groups
        positions = np.arange(int(np.prod(self._input_shape[:-1])))
        self._pointwise = np.array_equal(self._taps, positions[:, None])

    def scale(self, factor: np.ndarray, offset: np.ndarray) -> None:
        """Fold the scale that follows into this sum; factor and offset are `(outputs,)`."""
        self._kernel = self._kernel * factor
        self._bias = self._bias * factor + offset

    def __call__(self, x: Curve) -> Curve:
        """Return the curve of the weighted sums."""
        if self._pointwise and x.channels == self._input_shape[-1]:
            return x.with_values(self._weighted(x.values))
        if self._pointwise and len(self._taps) == 1:  # a dense layer on a flattened map
            taps = np.arange(x.positions, dtype=np.int32)[None]
        else:
            x, taps = x.regrouped(self._input_shape), self._taps
        return self._sums(x, taps, self._weighted, len(self._bias))

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradient of the input, given that of the sums."""
        if self._pointwise:
            return [g.with_values(g.values @ self._transposed[0])]
        _, outputs, inputs = self._transposed.shape
        by_tap = self._transposed.swapaxes(0, 1).reshape(outputs, -1)
        return [g.with_values(g.values @ by_tap).moved(self._uses, inputs)]

    @cached_property
    def _transposed(self) -> np.ndarray:
        """The kernel as `(taps, outputs, inputs)`, with zeros between groups."""
        taps, inputs, outputs = self._kernel.shape
        by_group = self._kernel.reshape(taps, inputs, self._groups, -1)
        whole = np.zeros((taps, self._groups, outputs // self._groups, self._groups, inputs))
        for group in range(self._groups):
            whole[:, group, :, group] = by_group[:, :, group].transpose(0, 2, 1)
        return whole.reshape(taps, outputs, -1)

    def _weighted(self, gathered: np.ndarray) -> np.ndarray:
        """Return the sums for the values of some windows, `(rows, outputs)`."""
        taps, inputs, _ = self._kernel.shape
        kernel = self._kernel.reshape(taps, inputs, self._groups, -1).transpose(2, 0, 1, 3)
        by_group = gathered.reshape(len(gathered), taps, self._groups, inputs).transpose(2, 0, 1, 3)
        size = taps * inputs
        sums = by_group.reshape(self._groups, -1, size) @ kernel.reshape(self._groups, size, -1)
        out = sums.swapaxes(0, 1).reshape(len(gathered), -1)
        out += self._bias
        return out


class AverageLine(_WindowLine):
    """The transformer of average pooling: the mean of each window, ignoring padding."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation)
        self._counts = (self._taps >= 0).sum(axis=1)[:, None]

    def __call__(self, x: Curve) -> Curve:
        """Return the curve of the means."""
        x = x.regrouped(self._input_shape)
        shape = -1, self._taps.shape[1], x.channels
        sums = self._sums(x, self._taps, lambda v: v.reshape(shape).sum(axis=1), x.channels)
        return sums.with_values(sums.values / sums.rows_of(self._counts))

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradient of the input, given that of the means."""
        return [g.scaled(1 / self._counts).moved(self._uses, g.channels)]


class MaximumLine(bends.GradientTransformer, _WindowLine):
    """The transformer of max pooling, with points where another value becomes the maximum.

    With a floor of 0, it combines max pooling and ReLU (appendix G); crossings below the window's
    maximum then add no points.
    """

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation)
        # Padding is ignored by replacing it with a value of the window.
        taps = self._taps
        valid = np.take_along_axis(taps, np.argmax(taps >= 0, axis=1)[:, None], axis=1)
        self._taps = np.where(taps >= 0, taps, valid)
        self.floor = -np.inf

    @property
    def bends(self) -> bends.Bends:
        """Bends at which another value of a window becomes its maximum."""
        return bends.Bends(self._taps.shape[1], np.array([self.floor]))

    def window(self, x: Curve) -> Curve:
        """Return the values of each window, side by side."""
        x = x.regrouped(self._input_shape)
        return x.common_rows([x], [self._taps]).gathered()[0]

    def finish(self, window: Curve) -> Curve:
        """Return the windows' maxima."""
        maxima = bends.largest_tap(window.values, self._taps.shape[1])
        return window.with_values(np.maximum(maxima, self.floor, out=maxima))

    def slopes(self, middles: Curve) -> np.ndarray:
        """Return 1 for the tap with the largest value, 0 for all others."""
        return bends.is_largest_tap(middles.values, self._taps.shape[1], self.floor)

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradient of the input, given that of the windows."""
        return [g.moved(self._uses, g.channels // self._taps.shape[1])]


bends.register_transformer("weighted_sum", WeightedSumLine)
bends.register_transformer("average", AverageLine)
bends.register_transformer("maximum", MaximumLine)
