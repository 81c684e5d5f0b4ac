"""Weighted sums: dense layers and all kinds of convolutions.

Each output neuron has local values w·Δx, under one exclusion; a synapse's contribution is the
sum over the positions that use it.

A gate of a recurrent layer sums over several inputs under one exclusion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf._kernels import pools, sums
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.layout import KernelLayout
from nnslicer_tf.instrument.operations import Operation, Synapses
from nnslicer_tf.instrument.windows import flat, windows
from nnslicer_tf.kinds.kind import AtZero, Kind, Layout, Neurons, Node, Rule, register_kind
from nnslicer_tf.kinds.rescale import midpoint


@dataclass(frozen=True, eq=False)
class SumTable:
    """Data for the exclusion rule of a weighted sum."""

    kernel: KernelLayout
    weights: np.ndarray  # (groups, outputs per group, taps · inputs per group) float32
    taps: np.ndarray  # (output positions, taps) int32
    # at channel granularity: means of what each tap reads, (taps, inputs) float64, and the largest
    # deviations from them that are rounding
    tap_means: np.ndarray | None
    tap_rounding: np.ndarray | None = None


def _table(operation: Operation, layout: Layout) -> SumTable:
    kernel: Synapses = operation.params
    matrix = kernel.matrix()
    taps, inputs, outputs = matrix.shape
    by_output = np.ascontiguousarray(matrix.reshape(taps * inputs, outputs).T)
    weights = by_output.reshape(kernel.groups, -1, taps * inputs)
    tap_means = tap_rounding = None
    if layout.granularity == "channel":
        source = operation.inputs[0]
        mean = layout.means[source]
        tap_means, tap_rounding = (
            pools.tap_means(values.reshape(1, -1, mean.shape[-1]), kernel.taps)[0]
            for values in (mean, layout.rounding.get(source, np.zeros_like(mean)))
        )
    return SumTable(kernel.layout, weights, kernel.taps, tap_means, tap_rounding)


def _exclusion(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: list[Neurons], each: bool
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
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
        dx[np.abs(dx) <= table.tap_rounding] = 0
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
    # The synapses, in the shape of the layer's kernel.
    samples, groups, outputs, width = synapses.shape
    by_tap = synapses.reshape(samples, groups * outputs, width).transpose(0, 2, 1)
    window = table.taps.shape[1]
    whole = table.kernel.to_kernel(by_tap.reshape(samples, window, width // window, -1))
    return [received.reshape(x.value.shape)], {table.kernel.name: whole}


def weight_signs(kernel: Synapses) -> Any:
    """Return the signs of a kernel's weights, a float32 tensor."""
    return ops.sign(ops.cast(kernel.variable(), "float32"))


def _at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> list[Any]:
    """Return sign(Δx) ⊙ (transposed weighted sum of g with sign(W))."""
    kernel: Synapses = operation.params
    (received,) = vector_jacobian_product(
        lambda x: kernel.apply(x, weight_signs(kernel)), [signs[0]], g
    )
    return [signs[0] * received]


def _kernels_at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> dict[str, Any]:
    """Return sign(W) ⊙ (weight gradient of the weighted sum at inputs sign(Δx), cotangent g)."""
    kernel: Synapses = operation.params
    weights = weight_signs(kernel)
    (gradient,) = vector_jacobian_product(lambda w: kernel.apply(signs[0], w), [weights], g)
    return {kernel.name: weights * gradient}


def _samples_at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> dict[str, Any]:
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
    Kind("weighted_sum"),
    Rule(_exclusion, _exclusion, synapses=True, table=_table),
    AtZero(_at_zero, _kernels_at_zero, _samples_at_zero),
    midpoint,
)


class _Read(NamedTuple):
    """How a gate reads one of its inputs."""

    taps: np.ndarray  # input positions (output positions, taps) int32, -1 for padding
    kernel: KernelLayout
    start: int  # the gate's first column in the kernel


class GateTable(NamedTuple):
    """Data for the exclusion of a gate."""

    reads: tuple[_Read, ...]  # for each input
    weights: np.ndarray  # (1, outputs, local values) float32


def gate_table(operation: Operation) -> GateTable:
    """Return the table of a gate, an operation of one time step."""
    reads, parts = [], []
    for weights in operation.params.weights:
        matrix = weights.columns(weights.kernel.matrix())
        parts.append(matrix.reshape(-1, matrix.shape[-1]).T)
        reads.append(_Read(weights.kernel.taps, weights.kernel.layout, weights.start))
    return GateTable(tuple(reads), np.ascontiguousarray(np.hstack(parts))[None])


def expand_gate(
    table: GateTable,
    theta: float,
    signs: np.ndarray,
    reference: np.ndarray,
    inputs: Sequence[Neurons],
    synapses: dict[str, np.ndarray],
    each: bool,
) -> list[np.ndarray]:
    """Return the CONTRIB of the inputs, and add that of the synapses to `synapses`, by kernel name.

    `signs` = sign(CONTRIB · Δy) of the outputs, `(batch, *space, outputs)` int8, and `reference`,
    by which θ is multiplied, have the same shape. `each` separates the samples' synapses.
    """
    batch, positions = len(signs), len(table.reads[0].taps)
    deltas = []  # that the taps read, side by side; padding reads a final zero
    for x, read in zip(inputs, table.reads, strict=True):
        padded = np.pad(flat(x.delta), ((0, 0), (0, 1), (0, 0)))
        deltas.append(padded[:, read.taps].reshape(batch, positions, -1))
    shape = (batch, positions, -1)
    received, collected = sums.weighted_sum(
        signs.reshape(shape),
        reference.reshape(shape),
        np.concatenate(deltas, axis=2),
        table.weights,
        np.arange(positions, dtype=np.int32)[:, None],
        theta,
        each,
    )
    ends = np.cumsum([part.shape[2] for part in deltas])[:-1]
    by_input = (np.split(values, ends, axis=2) for values in (received, collected[:, 0]))
    parts = []
    for x, read, to_input, of_kernel in zip(inputs, table.reads, *by_input, strict=True):
        # Add up what the taps received, at the positions that they read.
        extents = x.value.shape
        total = np.zeros((batch, int(np.prod(extents[1:-1])) + 1, extents[-1]), received.dtype)
        by_tap = to_input.reshape(batch, positions, -1, extents[-1])
        for k, places in enumerate(read.taps.T):  # no two outputs read a position with one tap
            total[:, places] += by_tap[:, :, k]
        parts.append(total[:, :-1].reshape(extents))
        # Put the gate's columns into the kernel.
        samples, outputs, width = of_kernel.shape
        taps = read.taps.shape[1]
        matrix = of_kernel.transpose(0, 2, 1).reshape(samples, taps, width // taps, outputs)
        rest = (read.start, read.kernel.shape[-1] - read.start - outputs)
        whole = read.kernel.to_kernel(np.pad(matrix, ((0, 0), (0, 0), (0, 0), rest)))
        synapses[read.kernel.name] = synapses.get(read.kernel.name, 0) + whole
    return parts


def signs_of_gate(operation: Operation) -> list[Any]:
    """Return the signs of a gate's weights for each input, tensors."""
    return [w.columns(weight_signs(w.kernel)) for w in operation.params.weights]


def gate_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], weights: Sequence[Any]
) -> list[Any]:
    """Return the CONTRIB of a gate's inputs, given `signs_of_gate`; see `_at_zero`."""
    received = []
    for part, x, w in zip(operation.params.weights, signs, weights, strict=True):
        (given,) = vector_jacobian_product(lambda v, a=part.kernel.apply, w=w: a(v, w), [x], g)
        received.append(x * given)
    return received


def gate_synapses(operation: Operation, g: Any, signs: Sequence[Any]) -> dict[str, tuple[int, Any]]:
    """Return the CONTRIB of a gate's synapses for each sample, summed over time.

    Arguments are those of `gate_at_zero`, at all times, `(batch, time, …)`. Returns kernel name →
    the gate's first column, and `(batch, taps, inputs, outputs)`.
    """
    parts: dict[str, tuple[int, Any]] = {}
    batch, steps = ops.shape(g)[0], g.shape[1]
    for w, x, shape in zip(operation.params.weights, signs, operation.input_shapes, strict=True):
        taps = w.kernel.taps
        if taps.size > 1:  # a dense gate reads its input as it is
            x = windows(shape, ops.reshape(x, (-1, *shape)), taps)
        read = ops.reshape(x, (batch, steps * len(taps), taps.shape[1], shape[-1]))
        by_position = ops.reshape(g, (batch, steps * len(taps), g.shape[-1]))
        gradient = ops.einsum("bpti,bpo->btio", read, by_position)
        of_kernel = w.kernel.from_kernel(weight_signs(w.kernel))
        parts[w.kernel.name] = w.start, gradient * w.columns(of_kernel)
    return parts
