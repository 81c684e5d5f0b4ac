"""Exact lines through dense layers and all kinds of convolutions."""

from functools import cached_property

import numpy as np

from nnslicer_tf.exactline._kernels import lines
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.rules.table import register_transformer
from nnslicer_tf.exactline.steps import MAX_GATHERED, MIN_ROWS, Steps, Uses
from nnslicer_tf.instrument.operations import Operation, Synapses


class WeightedSumLine:
    """The transformer of a weighted sum, using its table of taps; it adds no points (theorem 1)."""

    def __init__(self, operation: Operation) -> None:
        synapses: Synapses = operation.params
        bias = synapses.bias()
        weights = synapses.variable().numpy().astype(np.float64)
        self._kernel = np.ascontiguousarray(synapses.from_kernel(weights))
        outputs = self._kernel.shape[-1]
        self._bias = np.zeros(outputs) if bias is None else bias.numpy().astype(np.float64)
        self._groups = synapses.groups
        self._taps = synapses.taps
        self._input_shape = operation.input_shapes[0]
        positions = np.arange(int(np.prod(self._input_shape[:-1])))
        self._pointwise = np.array_equal(self._taps, positions[:, None])

    def scale(self, factor: np.ndarray, offset: np.ndarray) -> None:
        """Fold the scale that follows into this sum; factor and offset are `(outputs,)`."""
        self._kernel = self._kernel * factor
        self._bias = self._bias * factor + offset

    def __call__(self, x: Curve) -> Curve:
        """Return the curve of the weighted sums."""
        if self._pointwise and x.channels == self._input_shape[-1]:
            if self._groups > 1:
                return x.with_values(self._grouped_sum(x.values))
            out = x.values @ self._kernel[0]
            out += self._bias
            return x.with_values(out)
        if self._pointwise and len(self._taps) == 1:  # a dense layer on a flattened map
            taps = np.arange(x.positions, dtype=np.int32)[None]
        else:
            x, taps = x.regrouped(self._input_shape), self._taps
        rows = x.common_rows([x], [taps])
        # As many rows at a time as fit into the cache.
        width = taps.shape[1] * x.channels
        piece = max(MIN_ROWS, MAX_GATHERED // width)
        if self._groups == 1:
            return rows.curve(rows.window_sums(self._kernel.reshape(width, -1), self._bias, piece))
        out = np.empty((len(rows), len(self._bias)))
        for first in range(0, len(rows), piece):
            gathered = rows.gather(0, first, min(first + piece, len(rows)))
            out[first : first + piece] = self._grouped_sum(gathered)
        return rows.curve(out)

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradient of the input, given that of the sums."""
        if self._pointwise:
            return [g.with_values(g.values @ self._transposed[0])]
        taps, outputs, inputs = self._transposed.shape
        if taps * inputs <= outputs:  # an image's few channels: products take less than windows
            by_tap = self._transposed.swapaxes(0, 1).reshape(outputs, -1)
            return [g.with_values(g.values @ by_tap).moved(self._uses, inputs)]
        return [g.pulled(self._uses, self._transposed)]

    @cached_property
    def _uses(self) -> Uses:
        return Uses.of(self._taps, int(np.prod(self._input_shape[:-1])))

    @cached_property
    def _transposed(self) -> np.ndarray:
        """The kernel as `(taps, outputs, inputs)`, with zeros between groups."""
        taps, inputs, outputs = self._kernel.shape
        by_group = self._kernel.reshape(taps, inputs, self._groups, -1)
        whole = np.zeros((taps, self._groups, outputs // self._groups, self._groups, inputs))
        for group in range(self._groups):
            whole[:, group, :, group] = by_group[:, :, group].transpose(0, 2, 1)
        return whole.reshape(taps, outputs, -1)

    def _grouped_sum(self, gathered: np.ndarray) -> np.ndarray:
        return lines.grouped_sum(gathered, self._groups, self._kernel, self._bias)


register_transformer("weighted_sum", WeightedSumLine)
