"""Transformers of affine operations: they keep the points (theorem 1 of the paper)."""

import keras
import numpy as np

from nnslicer_tf.exactline import _kernels
from nnslicer_tf.exactline.curve import CommonRows, Curve, regrouped
from nnslicer_tf.instrument import Operation

__all__ = ["Addition", "AverageWindow", "Scale", "WeightedSum", "broadcast_taps", "float64"]

_GATHERED = 1 << 17  # float64 numbers in a piece of gathered windows: 1 MB
_FEWEST = 32  # rows in a piece, for matrix products worth the name


class WeightedSum:
    """A dense layer or a convolution of any kind, through its table of taps."""

    def __init__(self, operation: Operation) -> None:
        synapses = operation.params
        bias = synapses.bias()
        kernel = synapses.from_kernel(float64(synapses.variable()))
        self._kernel = np.ascontiguousarray(kernel)
        self._bias = np.zeros(kernel.shape[-1]) if bias is None else float64(bias)
        self._groups = synapses.groups
        self._taps = synapses.taps
        self._input_shape = operation.input_shapes[0]
        positions = np.arange(int(np.prod(self._input_shape[:-1])))
        self._pointwise = np.array_equal(self._taps, positions[:, None])

    def scale(self, factor: np.ndarray, offset: np.ndarray) -> None:
        """Take over the scale that follows: `(outputs,)` factor and offset."""
        self._kernel = self._kernel * factor
        self._bias = self._bias * factor + offset

    def __call__(self, x: Curve) -> Curve:
        """Return the weighted sums."""
        if self._pointwise and x.channels == self._input_shape[-1]:
            return x.with_values(self._sum(x.values))
        if self._pointwise and len(self._taps) == 1:  # a dense layer on a flattened map
            return self._sum_windows(x, np.arange(x.positions)[None])
        return self._sum_windows(regrouped(x, self._input_shape), self._taps)

    def _sum_windows(self, x: Curve, taps: np.ndarray) -> Curve:
        """Gather the windows of some rows at a time, as many as fit the cache."""
        rows = CommonRows([x], [taps])
        width = taps.shape[1] * x.channels
        piece = max(_FEWEST, _GATHERED // width)
        if self._groups == 1:
            out = rows.window_sums(self._kernel.reshape(width, -1), self._bias, piece)
        else:
            out = np.empty((len(rows), len(self._bias)))
            for first in range(0, len(rows), piece):
                gathered = rows.gather(0, first, min(first + piece, len(rows)))
                out[first : first + piece] = self._grouped_sum(gathered)
        return Curve(x.lines, rows.start, rows.ratio, out)

    def _sum(self, x: np.ndarray) -> np.ndarray:
        if self._groups > 1:
            return self._grouped_sum(x)
        out = x @ self._kernel[0]
        out += self._bias
        return out

    def _grouped_sum(self, gathered: np.ndarray) -> np.ndarray:
        return _kernels.grouped_sum(gathered, self._groups, self._kernel, self._bias)


class Scale:
    """x · factor + offset: batch normalisation, rescaling, operators with constants."""

    def __init__(self, operation: Operation) -> None:
        factor, offset = operation.params.read()
        self._shape = operation.shape
        self._factor = _table(factor, operation.shape)
        self._offset = _table(offset, operation.shape)

    def per_channel(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return factor and offset `(channels,)`, or None if they differ by position."""
        if len(self._factor) > 1 or len(self._offset) > 1:
            return None
        return self._factor[0], self._offset[0]

    def __call__(self, x: Curve) -> Curve:
        """Return the scaled values."""
        x = regrouped(x, self._shape)
        values = x.values * x.rows_of(self._factor)
        values += x.rows_of(self._offset)
        return x.with_values(values)


class AverageWindow:
    """Average pooling: every window's mean, padding not counted."""

    def __init__(self, operation: Operation) -> None:
        self._taps = operation.params.taps
        self._counts = (self._taps >= 0).sum(axis=1)[:, None]
        self._input_shape = operation.input_shapes[0]

    def __call__(self, x: Curve) -> Curve:
        """Return the means."""
        x = regrouped(x, self._input_shape)
        rows = CommonRows([x], [self._taps])
        taps = self._taps.shape[1]
        piece = max(1, _GATHERED // (taps * x.channels))
        out = np.empty((len(rows), x.channels))
        for first in range(0, len(rows), piece):
            gathered = rows.gather(0, first, min(first + piece, len(rows)))
            gathered.reshape(-1, taps, x.channels).sum(axis=1, out=out[first : first + piece])
        sums = Curve(x.lines, rows.start, rows.ratio, out)
        return sums.with_values(out / sums.rows_of(self._counts))


class Addition:
    """The sum of tensors, or the first less the second."""

    def __init__(self, operation: Operation) -> None:
        self._combine = np.subtract if operation.kind == "subtract" else np.add
        self._shapes = operation.input_shapes
        self._taps = broadcast_taps(operation)

    def __call__(self, *inputs: Curve) -> Curve:
        """Return the sum; tensors of other shapes are broadcast."""
        inputs = [regrouped(x, shape) for x, shape in zip(inputs, self._shapes, strict=True)]
        rows = CommonRows(inputs, self._taps)
        total = rows.gather(0, 0, len(rows))
        for i in range(1, len(inputs)):
            total = self._combine(total, rows.gather(i, 0, len(rows)))
        return Curve(rows.lines, rows.start, rows.ratio, total)


def float64(variable: keras.Variable) -> np.ndarray:
    """Return a copy of a variable as a float64 array."""
    return variable.numpy().astype(np.float64)


def broadcast_taps(operation: Operation) -> list[np.ndarray]:
    """Return for every input of a merge the position that each output position reads."""
    out = operation.shape[:-1]
    tables = []
    for shape in operation.input_shapes:
        space = (1,) * (len(out) + 1 - len(shape)) + tuple(shape[:-1])
        own = np.arange(int(np.prod(space)), dtype=np.int32).reshape(space)
        tables.append(np.broadcast_to(own, out).reshape(-1, 1).copy())
    return tables


def _table(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array that broadcasts to `shape` as `(positions or 1, channels)` float64."""
    array = np.asarray(array, np.float64)
    if array.size == 1 or array.size == array.shape[-1]:
        return np.broadcast_to(array.reshape(1, -1), (1, shape[-1]))
    return np.broadcast_to(array, shape).reshape(-1, shape[-1])
