"""Lookup: the rows of an embedding's table, by token.

An element of an embedded token is a weight of the table. Where its Δ is not zero, it passes
sign(CONTRIB) to that weight and to the position of the token.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf.instrument.layout import KernelLayout
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.kind import AtZero, Kind, Layout, Neurons, Node, Rule, register_kind


def _rule(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: list[Neurons], each: bool
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    table: KernelLayout = node.table
    samples = len(signs)
    tokens = inputs[0].captured.astype(np.int64)
    received = signs.sum(axis=-1, dtype=np.int32)
    total = np.zeros((samples if each else 1, *table.shape), np.int32)
    if signs.ndim > tokens.ndim:
        rows = np.arange(samples) if each else np.zeros(samples, np.int64)
        index = np.broadcast_to(rows.reshape(-1, *(1,) * (tokens.ndim - 1)), tokens.shape)
        np.add.at(total, (index, tokens), signs)
        return [received], {table.name: total}
    # At granularity "channel", a channel is one neuron, whose synapse with a token counts once.
    present = np.ones(tokens.shape, bool)
    if output.mask is not None:
        present = np.broadcast_to(output.mask[..., 0] > 0, tokens.shape)
    for sample in range(samples):
        total[sample if each else 0, np.unique(tokens[sample][present[sample]])] += signs[sample]
    received = received.reshape(samples, *(1,) * (tokens.ndim - 1)) * present
    return [received], {table.name: total}


def _at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> list[Any]:
    return [ops.sum(g, axis=-1)]


def _kernels_at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> dict[str, Any]:
    rows, channels = operation.params.shape
    tokens = ops.cast(ops.reshape(values[operation.inputs[0]], (-1,)), "int32")
    total = ops.segment_sum(ops.reshape(g, (-1, channels)), tokens, num_segments=rows)
    return {operation.params.name: total}


def _samples_at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> dict[str, Any]:
    rows, channels = operation.params.shape
    tokens = ops.cast(values[operation.inputs[0]], "int32")
    samples = ops.shape(tokens)[0]
    tokens = ops.reshape(tokens, (samples, -1)) + ops.arange(samples)[:, None] * rows
    g, tokens = ops.reshape(g, (-1, channels)), ops.reshape(tokens, (-1,))
    total = ops.segment_sum(g, tokens, num_segments=samples * rows)
    return {operation.params.name: ops.reshape(total, (samples, 1, rows, channels))}


def _table(operation: Operation, layout: Layout) -> KernelLayout:
    return operation.params.layout


# The difference between two tokens has no meaning.
register_kind(
    Kind("lookup", by_change=False),
    Rule(_rule, _rule, synapses=True, table=_table),
    AtZero(_at_zero, _kernels_at_zero, _samples_at_zero),
    lambda *_: [None],
)
