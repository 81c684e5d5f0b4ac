"""Softmax inside a network: local values y_i · (δ_ij − y_j) · Δx_j per row, one exclusion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf._kernels import products
from nnslicer_tf.instrument.operations import Operation, Softmax
from nnslicer_tf.kinds import rescale
from nnslicer_tf.kinds.kind import Kind, Layout, Neurons, Node, Rule, register_kind
from nnslicer_tf.kinds.product_sum import check_granularity

ops: Any = LazyModule("keras.ops")


@dataclass(frozen=True, eq=False)
class _Table:
    """The order of axes, including the batch, in which those of a row come last."""

    order: tuple[int, ...]
    entries: int


def _table(operation: Operation, layout: Layout) -> _Table:
    check_granularity(operation, layout)
    params: Softmax = operation.params
    rank = len(operation.shape) + 1
    axes = [axis % rank for axis in params.axes]
    others = [axis for axis in range(rank) if axis not in axes]
    entries = int(np.prod([operation.shape[axis - 1] for axis in axes]))
    return _Table((*others, *axes), entries)


def _exclusion(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray | None]:
    table: _Table = node.table
    x, *masks = inputs

    def rows(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values.transpose(table.order)).reshape(-1, table.entries)

    received = products.softmax(
        rows(signs), rows(output.value), rows(x.delta), theta, output.is_relative_to_sum
    )
    arranged = received.reshape([signs.shape[axis] for axis in table.order])
    return [arranged.transpose(np.argsort(table.order)), *(None for _ in masks)]


def _at_zero(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list[Any]:
    """Sum the signs of the local values: of y_i, and of 1 − y_j for j = i, otherwise of −y_j.

    1 − y_j is computed as the sum of the others: near 1, the difference would only be rounding.
    """
    axes = operation.params.axes
    present = ops.sign(values[operation.name])
    given = g * present
    has_others = ops.sign(ops.sum(present, axis=axes, keepdims=True) - present)
    others = ops.sum(given, axis=axes, keepdims=True) - given
    received = signs[0] * (given * has_others - present * others)
    return [received, *(None for _ in signs[1:])]


register_kind(
    Kind(
        "softmax",
        rule=Rule(_exclusion, _exclusion),
        table=_table,
        at_zero=_at_zero,
        rescale=rescale.softmax,
        kernels="products",
    )
)
