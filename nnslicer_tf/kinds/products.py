"""Sums of products of two activations, and softmax inside a network.

A product-sum is y = Σ_s a_s · b_s, as in attention scores (from keys and queries), contexts (from
probabilities and values), `Dot` and `matmul`. Its local values are Δa_s · b_s and a_s · Δb_s, two
for each product, under one exclusion. Those of a softmax are y_i · (δ_ij − y_j) · Δx_j per row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf._kernels import products
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds import rescale
from nnslicer_tf.kinds.kind import AtZero, Kind, Layout, Neurons, Node, Rule, register_kind


@dataclass(frozen=True, eq=False)
class Arrangement:
    """An order of axes, and a shape, in which a kernel reads an array."""

    order: tuple[int, ...]  # axes, including the batch
    shape: tuple[int, ...]  # after the batch; if its first extent is -1, it absorbs the batch

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return an array in this arrangement, contiguous."""
        return np.ascontiguousarray(x.transpose(self.order)).reshape(self.shape)

    def undo(self, part: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Restore the original axes and shape of an arranged array."""
        return part.reshape([shape[axis] for axis in self.order]).transpose(np.argsort(self.order))


def _check_granularity(operation: Operation, layout: Layout) -> None:
    """Reject operations with positions at granularity "channel"; vectors have only channels."""
    has_positions = any(len(shape) > 1 for shape in (operation.shape, *operation.input_shapes))
    if layout.granularity == "channel" and has_positions:
        raise UnsupportedLayerError(
            f"Operation '{operation.name}' is of kind '{operation.kind}', whose last axis need not "
            "be channels: means of products are needed. Slice with granularity='activation'."
        )


def _product_table(operation: Operation, layout: Layout) -> list[Arrangement]:
    """Return those of a, b and y by which y[group, m, n] = Σ_s a[group, m, s] · b[group, n, s]."""
    _check_granularity(operation, layout)
    inputs, y = operation.params.equation.split("->")
    a, b = inputs.split(",")
    common = "".join(axis for axis in y if axis in a and axis in b)
    rows = "".join(axis for axis in y if axis not in b)
    columns = "".join(axis for axis in y if axis not in a)
    summed = "".join(axis for axis in a if axis not in y)
    extents = {a[0]: 1}  # the batch
    for axes, shape in zip((a, b), operation.input_shapes, strict=True):
        extents |= dict(zip(axes[1:], shape, strict=True))

    def arrangement(axes: str, first: str, last: str) -> Arrangement:
        sizes = (int(np.prod([extents[axis] for axis in part])) for part in (first, last))
        return Arrangement(tuple(axes.index(axis) for axis in common + first + last), (-1, *sizes))

    parts = (a, rows, summed), (b, columns, summed), (y, rows, columns)
    return [arrangement(*part) for part in parts]


def _products(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    *of_inputs, of_y = node.table
    sides = list(zip(inputs, of_inputs, strict=True))
    first, second = [(order.apply(x.factor), order.apply(x.delta)) for x, order in sides]
    # Keras adds an axis of size 1 to the dot product of two vectors.
    shape = signs.shape[: len(of_y.order)]
    received = products.product_sum(
        of_y.apply(signs.reshape(shape)),
        of_y.apply(output.value.reshape(shape)),
        first,
        second,
        theta,
        output.is_relative_to_sum,
    )
    return [order.undo(p, x.captured.shape) for p, (x, order) in zip(received, sides, strict=True)]


def _product_at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> list[Any]:
    a, b = (ops.sign(values[name]) for name in operation.inputs)
    (first,) = vector_jacobian_product(lambda x: operation.compute(x, b), [signs[0]], g)
    (second,) = vector_jacobian_product(lambda x: operation.compute(a, x), [signs[1]], g)
    return [signs[0] * first, signs[1] * second]


def _softmax_table(operation: Operation, layout: Layout) -> Arrangement:
    """Return the order of axes that puts those of a row last."""
    _check_granularity(operation, layout)
    rank = len(operation.shape) + 1
    axes = [axis % rank for axis in operation.params.axes]
    entries = int(np.prod([operation.shape[axis - 1] for axis in axes]))
    return Arrangement((*(axis for axis in range(rank) if axis not in axes), *axes), (-1, entries))


def _softmax(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray | None]:
    rows: Arrangement = node.table
    x, *masks = inputs
    received = products.softmax(
        rows.apply(signs),
        rows.apply(output.value),
        rows.apply(x.delta),
        theta,
        output.is_relative_to_sum,
    )
    return [rows.undo(received, signs.shape), *(None for _ in masks)]


def _softmax_at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> list[Any]:
    """Sum the signs of the local values: of y_i, and of 1 − y_j for j = i, otherwise of −y_j."""
    axes = operation.params.axes
    present = ops.sign(values[operation.name])
    given = g * present
    # 1 − y_j is the sum of the others: near 1, the difference would only be rounding.
    has_others = ops.sign(ops.sum(present, axis=axes, keepdims=True) - present)
    others = ops.sum(given, axis=axes, keepdims=True) - given
    return [signs[0] * (given * has_others - present * others), *(None for _ in signs[1:])]


register_kind(
    Kind("product_sum", multiplies=True),
    Rule(_products, _products, table=_product_table),
    AtZero(_product_at_zero),
    rescale.midpoint,
)

register_kind(
    Kind("softmax"),
    Rule(_softmax, _softmax, table=_softmax_table),
    AtZero(_softmax_at_zero),
    rescale.softmax,
)
