"""Weighted sums: dense layers and all kinds of convolutions.

Each output neuron has local values w·Δx, under one exclusion; a synapse's contribution is the
sum over the positions that use it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf._kernels import pools
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.layout import KernelLayout
from nnslicer_tf.instrument.operations import Operation, Synapses
from nnslicer_tf.kinds.kind import Kind, Layout, Neurons, Node, register_kind
from nnslicer_tf.kinds.rescale import midpoint
from nnslicer_tf.kinds.windows import flat, windows

ops: Any = LazyModule("keras.ops")


@dataclass(frozen=True, eq=False)
class SumTable:
    """Data for the exclusion rule of a weighted sum."""

    kernel: KernelLayout
    weights: np.ndarray  # (groups, outputs per group, taps · inputs per group) float32
    taps: np.ndarray  # (output positions, taps) int32
    # at channel granularity: means of what each tap reads, (taps, inputs) float64
    tap_means: np.ndarray | None


def _table(operation: Operation, layout: Layout) -> SumTable:
    kernel: Synapses = operation.params
    matrix = kernel.matrix()
    taps, inputs, outputs = matrix.shape
    by_output = np.ascontiguousarray(matrix.reshape(taps * inputs, outputs).T)
    weights = by_output.reshape(kernel.groups, -1, taps * inputs)
    tap_means = None
    if layout.granularity == "channel":
        mean = layout.means[operation.inputs[0]]
        tap_means = pools.tap_means(mean.reshape(1, -1, mean.shape[-1]), kernel.taps)[0]
    return SumTable(kernel.layout, weights, kernel.taps, tap_means)


def synapses_by_kernel(table: SumTable, synapses: np.ndarray) -> dict[str, np.ndarray]:
    """Return the compiled kernel's result for the synapses, in the shape of the layer's kernel."""
    samples, groups, outputs, width = synapses.shape
    by_tap = synapses.reshape(samples, groups * outputs, width).transpose(0, 2, 1)
    taps = table.taps.shape[1]
    whole = table.kernel.to_kernel(by_tap.reshape(samples, taps, width // taps, -1))
    return {table.kernel.name: whole}


def _exclusion(
    node: Node,
    theta: float,
    signs: np.ndarray,
    output: Neurons,
    inputs: Sequence[Neurons],
    each: bool,
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the contributions of the input and of the synapses."""
    table: SumTable = node.table
    (x,) = inputs
    if table.tap_means is None:
        dx, taps = flat(x.delta), table.taps
    else:  # one window per filter: the mean of the values that each of its taps reads
        values = flat(x.captured)
        if output.mask is None:
            means = pools.tap_means(values, table.taps)
        else:  # over the output positions that are not padding
            present = np.broadcast_to(output.mask > 0, (*output.captured.shape[:-1], 1))
            present = present.reshape(len(values), -1, 1)
            count = np.maximum(present.sum(axis=1), 1)
            read = [values[:, tap] * (present & (tap >= 0)[:, None]) for tap in table.taps.T]
            means = np.stack([r.sum(axis=1, dtype=np.float64) / count for r in read], axis=1)
        dx = (means - table.tap_means).astype(np.float32)
        taps = np.arange(means.shape[1], dtype=np.int32)[None, :]
    shape = (len(signs), len(taps), -1)
    received, synapses = x.sums.weighted_sum(
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
    return [received.reshape(x.value.shape)], synapses_by_kernel(table, synapses)


def weight_signs(kernel: Synapses) -> Any:
    """Return the signs of a kernel's weights, a float32 tensor."""
    return ops.sign(ops.cast(kernel.variable(), "float32"))


def _at_zero(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list[Any]:
    """Return sign(Δx) ⊙ (transposed weighted sum of g with sign(W))."""
    kernel: Synapses = operation.params
    (received,) = vector_jacobian_product(
        lambda x: kernel.apply(x, weight_signs(kernel)), [signs[0]], g
    )
    return [signs[0] * received]


def _kernels_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> dict[str, Any]:
    """Return sign(W) ⊙ (weight gradient of the weighted sum at inputs sign(Δx), cotangent g)."""
    kernel: Synapses = operation.params
    weights = weight_signs(kernel)
    (gradient,) = vector_jacobian_product(lambda w: kernel.apply(signs[0], w), [weights], g)
    return {kernel.name: weights * gradient}


def _samples_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> dict[str, Any]:
    """Return sign(W) ⊙ (weight gradient of each sample)."""
    kernel: Synapses = operation.params
    gradients = sample_gradients(operation, signs[0], g)
    return {kernel.name: gradients * kernel.from_kernel(weight_signs(kernel))}


def sample_gradients(operation: Operation, x: Any, g: Any) -> Any:
    """Return each sample's weight gradient `(batch, taps, inputs, outputs)` for cotangents g."""
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


register_kind(
    Kind(
        "weighted_sum",
        synapse_rule=_exclusion,
        table=_table,
        at_zero=_at_zero,
        kernels_at_zero=_kernels_at_zero,
        samples_at_zero=_samples_at_zero,
        rescale=midpoint,
    )
)
