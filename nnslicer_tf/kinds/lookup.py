"""Lookup: the rows of an embedding's table, by token.

An element of an embedded token is a weight of the table. Where its Δ is not zero, it passes
sign(CONTRIB) to that weight and to the position of the token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf.instrument.layout import KernelLayout
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.kind import Kind, Layout, Neurons, Node, register_kind

ops: Any = LazyModule("keras.ops")


@dataclass(frozen=True, eq=False)
class _Table:
    """The table's layout, and whether a channel is one neuron."""

    kernel: KernelLayout
    by_channel: bool


def _table(operation: Operation, layout: Layout) -> _Table:
    return _Table(operation.params.layout, layout.granularity == "channel")


def _exclusion(
    node: Node,
    theta: float,
    signs: np.ndarray,
    output: Neurons,
    inputs: Sequence[Neurons],
    each: bool,
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the contributions of the tokens' positions and of the table."""
    table: _Table = node.table
    samples = len(signs)
    tokens = inputs[0].captured.astype(np.int64)
    found = np.zeros((samples if each else 1, *table.kernel.shape), np.int32)
    rows = np.arange(samples) if each else np.zeros(samples, np.int64)
    if table.by_channel:
        present = np.ones(tokens.shape, bool)
        if output.mask is not None:
            present = np.broadcast_to(output.mask[..., 0] > 0, tokens.shape)
        for sample in range(samples):
            # A channel is one neuron, whose synapse with a token counts once.
            seen = np.unique(tokens[sample][present[sample]])
            found[rows[sample], seen] += signs[sample]
        total = signs.sum(axis=-1, dtype=np.int32)
        received = total.reshape(samples, *(1,) * (tokens.ndim - 1)) * present
    else:
        index = np.broadcast_to(rows.reshape(-1, *(1,) * (tokens.ndim - 1)), tokens.shape)
        np.add.at(found, (index, tokens), signs)
        received = signs.sum(axis=-1, dtype=np.int32)
    return [received], {table.kernel.name: found}


def _at_zero(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list[Any]:
    return [ops.sum(g, axis=-1)]


def _kernels_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> dict[str, Any]:
    rows, channels = operation.params.shape
    tokens = ops.cast(ops.reshape(values[operation.inputs[0]], (-1,)), "int32")
    found = ops.segment_sum(ops.reshape(g, (-1, channels)), tokens, num_segments=rows)
    return {operation.params.name: found}


def _samples_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> dict[str, Any]:
    rows, channels = operation.params.shape
    tokens = ops.cast(values[operation.inputs[0]], "int32")
    samples = ops.shape(tokens)[0]
    tokens = ops.reshape(tokens, (samples, -1)) + ops.arange(samples)[:, None] * rows
    found = ops.segment_sum(
        ops.reshape(g, (-1, channels)), ops.reshape(tokens, (-1,)), num_segments=samples * rows
    )
    return {operation.params.name: ops.reshape(found, (samples, 1, rows, channels))}


def _rescale(operation: Operation, inputs: list, reference: list, multipliers: Any) -> list[None]:
    """Propagate nothing: the difference between two tokens has no meaning."""
    return [None]


register_kind(
    Kind(
        "lookup",
        synapse_rule=_exclusion,
        table=_table,
        at_zero=_at_zero,
        kernels_at_zero=_kernels_at_zero,
        samples_at_zero=_samples_at_zero,
        by_change=False,
        rescale=_rescale,
    )
)
