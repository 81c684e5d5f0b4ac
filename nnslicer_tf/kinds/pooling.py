"""Average and maximum pooling, sliding or global."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from nnslicer_tf._kernels import paths, pools, sums
from nnslicer_tf._lazy import LazyModule
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds._windows import flat, windows
from nnslicer_tf.kinds.bends import Bends, GradientTransformer, is_largest_tap, largest_tap
from nnslicer_tf.kinds.curve import Curve
from nnslicer_tf.kinds.kind import Kind, Layout, Neurons, Node, Rule, for_operation, register_kind
from nnslicer_tf.kinds.pointwise import one_to_one
from nnslicer_tf.kinds.rescale import largest, midpoint
from nnslicer_tf.kinds.steps import Steps, Uses
from nnslicer_tf.kinds.weighted_sum import flat_sample

ops: Any = LazyModule("keras.ops")

_GATHERED = 1 << 17  # float64 numbers in a piece of gathered windows: 1 MB


def _taps(operation: Operation, layout: Layout) -> np.ndarray:
    return operation.params.taps


def _average(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray | None]:
    """Propagate CONTRIB, with exclusion, using local values Δx / k; padding does not count."""
    x, *mask = inputs
    counts = (mask[0].captured > 0).sum(axis=1, keepdims=True) if mask else None
    received = sums.average(
        flat(signs),
        flat(output.reference),
        flat(x.delta),
        node.table,
        theta,
        counts,
        by_sum=output.is_relative_to_sum and x.mask is not None,
    )
    return [received.reshape(x.value.shape), *(None for _ in mask)]


def _maximum(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB to every input equal to the output."""
    (x,) = inputs
    received = pools.maximum(
        flat(signs), flat(output.value), flat(x.value), flat(x.sign), node.table
    )
    return [received.reshape(x.value.shape)]


def _average_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    received = signs[0] * _spread(operation, ops.ones_like, g, signs[0])
    return [received, *(None for _ in operation.inputs[1:])]


def _maximum_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    x = values[operation.inputs[0]]
    y = ops.reshape(values[operation.name], (ops.shape(x)[0], -1, 1, x.shape[-1]))
    return [signs[0] * _spread(operation, lambda read: ops.cast(read == y, "float32"), g, x)]


def _spread(operation: Operation, chosen: Callable[[Any], Any], g: Any, x: Any) -> Any:
    """Propagate g of each window to the inputs that `chosen` marks with 1."""
    taps = operation.params.taps
    marks = chosen(windows(operation.input_shapes[0], x, taps))
    g = ops.reshape(g, (ops.shape(x)[0], -1, 1, x.shape[-1]))
    (received,) = vector_jacobian_product(
        lambda inputs: windows(operation.input_shapes[0], inputs, taps),
        [ops.zeros_like(x)],
        marks * g,
    )
    return received


def _average_path(
    operation: Operation, path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
) -> list[np.ndarray]:
    """Select inputs as for a sum: the mean of k inputs reaches θ·y if their sum reaches k·θ·y."""
    taps = operation.params.taps
    count = (taps >= 0).sum(axis=1, keepdims=True)
    (x,) = inputs
    reached = np.zeros(x.shape, bool)
    channels = x.shape[-1]
    ones = np.ones((taps.shape[1], 1, channels), np.float32)
    paths.weighted_sum(
        flat_sample(path),
        flat_sample(y) * count * theta,
        flat_sample(x),
        ones,
        taps,
        channels,
        flat_sample(reached),
        np.zeros(ones.shape, bool),
    )
    return [reached]


def _maximum_path(
    operation: Operation, path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
) -> list[np.ndarray]:
    (x,) = inputs
    reached = np.zeros(x.shape, bool)
    paths.maximum(
        flat_sample(path),
        flat_sample(y),
        flat_sample(x),
        operation.params.taps,
        flat_sample(reached),
    )
    return [reached]


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
        piece = max(1, _GATHERED // (taps * x.channels))
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

    With a floor of 0, it combines max pooling and ReLU (appendix G): crossings of zero or of
    another value that are below the window's maximum then add no points.
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


register_kind(
    Kind(
        "average",
        reach="channel",
        rule=Rule(_average, one_to_one),
        table=_taps,
        at_zero=_average_at_zero,
        rescale=midpoint,
        path=for_operation(_average_path),
        line=AverageLine,
    )
)
register_kind(
    Kind(
        "maximum",
        reach="channel",
        rule=Rule(_maximum, one_to_one),
        table=_taps,
        at_zero=_maximum_at_zero,
        rescale=largest,
        path=for_operation(_maximum_path),
        line=MaximumLine,
    )
)
