"""Weighted sums: dense layers and all kinds of convolutions.

Each output neuron has local values w·Δx, under one exclusion; a synapse's contribution is the
sum over the positions that use it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nnslicer_tf._kernels import lines, paths, pools, sums
from nnslicer_tf._layout import KernelLayout
from nnslicer_tf._lazy import LazyModule
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.operations import Operation, Synapses
from nnslicer_tf.kinds._windows import flat, windows
from nnslicer_tf.kinds.curve import Curve
from nnslicer_tf.kinds.kind import Kind, Layout, Neurons, Node, register_kind
from nnslicer_tf.kinds.rescale import midpoint
from nnslicer_tf.kinds.steps import Steps, Uses

ops: Any = LazyModule("keras.ops")

_GATHERED = 1 << 17  # float64 numbers in a piece of gathered windows: 1 MB
_FEWEST = 32  # rows in a piece: products of smaller matrices are inefficient


@dataclass(frozen=True, eq=False)
class _SumTable:
    """Data for the exclusion rule of a weighted sum.

    Attributes:
        kernel: Layout of the kernel.
        weights: `(groups, outputs per group, taps · inputs per group)` float32.
        taps: `(output positions, taps)` int32.
        tap_means: At channel granularity, the profile's mean of the values that each tap reads,
            `(taps, inputs)` float64; otherwise None.
    """

    kernel: KernelLayout
    weights: np.ndarray
    taps: np.ndarray
    tap_means: np.ndarray | None


def _table(operation: Operation, layout: Layout) -> _SumTable:
    kernel: Synapses = operation.params
    matrix = kernel.matrix()
    taps, inputs, outputs = matrix.shape
    by_output = np.ascontiguousarray(matrix.reshape(taps * inputs, outputs).T)
    weights = by_output.reshape(kernel.groups, -1, taps * inputs)
    tap_means = None
    if layout.granularity == "channel":
        mean = layout.means[operation.inputs[0]]
        tap_means = pools.tap_means(mean.reshape(1, -1, mean.shape[-1]), kernel.taps)[0]
    return _SumTable(kernel.layout, weights, kernel.taps, tap_means)


def _exclusion(
    node: Node,
    theta: float,
    signs: np.ndarray,
    output: Neurons,
    inputs: Sequence[Neurons],
    each: bool,
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the contributions of the input and of the synapses."""
    table: _SumTable = node.table
    (x,) = inputs
    if table.tap_means is None:
        dx, taps = flat(x.delta), table.taps
    else:  # One window per filter: the mean of the values that each of its taps reads.
        means = _mean_windows(flat(x.captured), table.taps, output)
        dx = (means - table.tap_means).astype(np.float32)
        taps = np.arange(means.shape[1], dtype=np.int32)[None, :]
    shape = (len(signs), len(taps), -1)
    received, synapses = sums.weighted_sum(
        signs.reshape(shape),
        output.reference.reshape(shape),
        dx,
        table.weights,
        taps,
        theta,
        each,
        by_sum=output.is_relative_to_sum and x.mask is not None,
    )
    if table.tap_means is not None:
        received = received.sum(axis=1, dtype=np.int32)
    return [received.reshape(x.value.shape)], {table.kernel.name: _to_kernel(table, synapses)}


def _mean_windows(x: np.ndarray, taps: np.ndarray, output: Neurons) -> np.ndarray:
    """Return the mean window of each sample, over the output positions that are not padding.

    Args:
        x: Values of the inputs, `(batch, input positions, channels)`.
        taps: As in `Synapses`.
        output: The outputs.

    Returns:
        `(batch, taps, channels)` float64.
    """
    if output.mask is None:
        return pools.tap_means(x, taps)
    shape = (*output.captured.shape[:-1], 1)
    present = np.broadcast_to(output.mask > 0, shape).reshape(len(x), -1, 1)
    count = np.maximum(present.sum(axis=1), 1)
    read = [(x[:, column] * (present & (column >= 0)[:, None])) for column in taps.T]
    return np.stack([r.sum(axis=1, dtype=np.float64) / count for r in read], axis=1)


def _to_kernel(table: _SumTable, synapses: np.ndarray) -> np.ndarray:
    samples, groups, outputs, width = synapses.shape
    by_tap = synapses.reshape(samples, groups * outputs, width).transpose(0, 2, 1)
    taps = table.taps.shape[1]
    return table.kernel.to_kernel(by_tap.reshape(samples, taps, width // taps, -1))


def _at_zero(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list[Any]:
    """Return sign(Δx) ⊙ (transposed weighted sum of g with sign(W))."""
    kernel: Synapses = operation.params
    (received,) = vector_jacobian_product(
        lambda x: kernel.apply(x, _weight_signs(kernel)), [signs[0]], g
    )
    return [signs[0] * received]


def _kernels_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> dict[str, Any]:
    """Return sign(W) ⊙ (weight gradient of the weighted sum at inputs sign(Δx), cotangent g)."""
    kernel: Synapses = operation.params
    weights = _weight_signs(kernel)
    (gradient,) = vector_jacobian_product(lambda w: kernel.apply(signs[0], w), [weights], g)
    return {kernel.name: weights * gradient}


def _samples_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> dict[str, Any]:
    """Return sign(W) ⊙ (weight gradient of each sample)."""
    kernel: Synapses = operation.params
    gradients = sample_gradients(operation, signs[0], g)
    return {kernel.name: gradients * kernel.tensor_from_kernel(_weight_signs(kernel))}


def sample_gradients(operation: Operation, x: Any, g: Any) -> Any:
    """Return the weight gradient of each sample, `(batch, taps, inputs, outputs)`.

    Args:
        operation: A weighted sum.
        x: Its inputs `(batch, *input shape)`.
        g: Cotangents of its outputs `(batch, *shape)`.
    """
    kernel: Synapses = operation.params
    groups = kernel.groups
    read = windows(operation.input_shapes[0], x, kernel.taps)
    batch = ops.shape(read)[0]
    positions, taps = kernel.taps.shape
    inputs, outputs = read.shape[-1] // groups, g.shape[-1] // groups
    read = ops.reshape(read, (batch, positions, taps, groups, inputs))
    g = ops.reshape(g, (batch, positions, groups, outputs))
    gradient = ops.einsum("bptgi,bpgo->btigo", read, g)
    return ops.reshape(gradient, (batch, taps, inputs, groups * outputs))


def _weight_signs(kernel: Synapses) -> Any:
    return ops.sign(ops.cast(kernel.variable(), "float32"))


def path_through(
    operation: Operation,
    path: np.ndarray,
    goal: np.ndarray,
    x: np.ndarray,
    matrix: np.ndarray,
    used: np.ndarray,
) -> np.ndarray:
    """Mark the inputs of a weighted sum that are on the effective path, `(*input shape)` bool.

    Args:
        operation: The weighted sum.
        path: Whether each of its outputs is on the path, bool.
        goal: Values that the outputs' contributors must reach, of the same shape.
        x: The inputs' values.
        matrix: Weights `(taps, inputs per group, outputs)` float32.
        used: Changed in place: set to True for the synapses on the path; bool, of the shape of
            `matrix`.
    """
    kernel: Synapses = operation.params
    reached = np.zeros(x.shape, bool)
    paths.weighted_sum(
        flat_sample(path),
        flat_sample(goal),
        flat_sample(x),
        matrix,
        kernel.taps,
        kernel.groups,
        flat_sample(reached),
        used,
    )
    return reached


def flat_sample(values: np.ndarray) -> np.ndarray:
    """Return a view `(positions, channels)` of one sample's values."""
    return np.ascontiguousarray(values).reshape(-1, values.shape[-1])


class WeightedSumLine:
    """The transformer of a weighted sum, using its table of taps; it adds no points (theorem 1)."""

    def __init__(self, operation: Operation) -> None:
        synapses: Synapses = operation.params
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
        """Fold the scale that follows into this sum; factor and offset are `(outputs,)`."""
        self._kernel = self._kernel * factor
        self._bias = self._bias * factor + offset

    def __call__(self, x: Curve) -> Curve:
        """Return the curve of the weighted sums."""
        if self._pointwise and x.channels == self._input_shape[-1]:
            return x.with_values(self._sum(x.values))
        if self._pointwise and len(self._taps) == 1:  # a dense layer on a flattened map
            return self._sum_windows(x, np.arange(x.positions)[None])
        return self._sum_windows(x.regrouped(self._input_shape), self._taps)

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

    def _sum_windows(self, x: Curve, taps: np.ndarray) -> Curve:
        """Gather and sum the windows of as many rows at a time as fit into the cache."""
        rows = x.common_rows([x], [taps])
        width = taps.shape[1] * x.channels
        piece = max(_FEWEST, _GATHERED // width)
        if self._groups == 1:
            out = rows.window_sums(self._kernel.reshape(width, -1), self._bias, piece)
        else:
            out = np.empty((len(rows), len(self._bias)))
            for first in range(0, len(rows), piece):
                gathered = rows.gather(0, first, min(first + piece, len(rows)))
                out[first : first + piece] = self._grouped_sum(gathered)
        return rows.curve(out)

    def _sum(self, x: np.ndarray) -> np.ndarray:
        if self._groups > 1:
            return self._grouped_sum(x)
        out = x @ self._kernel[0]
        out += self._bias
        return out

    def _grouped_sum(self, gathered: np.ndarray) -> np.ndarray:
        return lines.grouped_sum(gathered, self._groups, self._kernel, self._bias)


def float64(variable: Any) -> np.ndarray:
    """Return a copy of a Keras variable as a float64 array."""
    return variable.numpy().astype(np.float64)


register_kind(
    Kind(
        "weighted_sum",
        synapse_rule=_exclusion,
        table=_table,
        at_zero=_at_zero,
        kernels_at_zero=_kernels_at_zero,
        samples_at_zero=_samples_at_zero,
        rescale=midpoint,
        line=WeightedSumLine,
    )
)
