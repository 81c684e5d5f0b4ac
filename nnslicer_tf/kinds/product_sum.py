"""Product-sum: sums of products of two activations, y = Σ_s a_s · b_s.

Examples are attention scores (from keys and queries), contexts (from probabilities and values),
`Dot` and `matmul`. The local values are Δa_s · b_s and a_s · Δb_s, two for each product, under one
exclusion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf._kernels import products
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.operations import Operation, ProductSum
from nnslicer_tf.kinds.kind import Kind, Layout, Neurons, Node, Rule, register_kind
from nnslicer_tf.kinds.rescale import midpoint

ops: Any = LazyModule("keras.ops")


@dataclass(frozen=True, eq=False)
class _Table:
    """The order of axes that gives y[group, m, n] = Σ_s a[group, m, s] · b[group, n, s].

    Attributes:
        a: Axes of the first input in the order group, m, s.
        b: Axes of the second input in the order group, n, s.
        y: Axes of the output in the order group, m, n.
        extents: Sizes of group, m, n and s; the group excludes the batch.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    y: tuple[int, ...]
    extents: tuple[int, int, int, int]


def check_granularity(operation: Operation, layout: Layout) -> None:
    """Check that a walk at granularity "channel" does not meet an operation with positions.

    Vectors have no positions: their elements are the channels, and the granularities coincide.

    Raises:
        UnsupportedLayerError: at granularity "channel", if the operation has positions.
    """
    has_positions = any(len(shape) > 1 for shape in (operation.shape, *operation.input_shapes))
    if layout.granularity == "channel" and has_positions:
        raise UnsupportedLayerError(
            f"Operation '{operation.name}' is of kind '{operation.kind}', whose last axis need not "
            "be channels: the mean of products is not the product of means. Slice with "
            "granularity='activation'."
        )


def _table(operation: Operation, layout: Layout) -> _Table:
    check_granularity(operation, layout)
    params: ProductSum = operation.params
    inputs, y = params.equation.split("->")
    a, b = inputs.split(",")
    common = "".join(axis for axis in y if axis in a and axis in b)
    rows = "".join(axis for axis in y if axis not in b)
    columns = "".join(axis for axis in y if axis not in a)
    summed = "".join(axis for axis in a if axis not in y)
    extents: dict[str, int] = {}
    for axes, shape in zip((a, b), operation.input_shapes, strict=True):
        extents |= dict(zip(axes[1:], shape, strict=True))

    def size(axes: str) -> int:
        return int(np.prod([extents[axis] for axis in axes if axis != a[0]]))

    def order(axes: str, wanted: str) -> tuple[int, ...]:
        return tuple(axes.index(axis) for axis in wanted)

    return _Table(
        order(a, common + rows + summed),
        order(b, common + columns + summed),
        order(y, common + rows + columns),
        (size(common), size(rows), size(columns), size(summed)),
    )


def _exclusion(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    table: _Table = node.table
    groups, m, n, s = table.extents
    batch = len(signs)
    a, b = inputs
    # Keras adds an axis of size 1 to the dot product of two vectors.
    rank = len(table.y)
    of_y = signs.shape[:rank]

    def arranged(x: np.ndarray, order: tuple[int, ...], rows: int, columns: int) -> np.ndarray:
        return np.ascontiguousarray(x.transpose(order)).reshape(batch * groups, rows, columns)

    received = products.product_sum(
        arranged(signs.reshape(of_y), table.y, m, n),
        arranged(output.value.reshape(of_y), table.y, m, n),
        (arranged(a.factor, table.a, m, s), arranged(a.delta, table.a, m, s)),
        (arranged(b.factor, table.b, n, s), arranged(b.delta, table.b, n, s)),
        theta,
        output.is_relative_to_sum,
    )
    return [
        _back(part, order, x.value.shape)
        for part, order, x in zip(received, (table.a, table.b), inputs, strict=True)
    ]


def _back(part: np.ndarray, order: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Restore the original axes and shape of a rearranged input."""
    arranged = part.reshape([shape[axis] for axis in order])
    return arranged.transpose(np.argsort(order))


def _at_zero(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list[Any]:
    factors = [ops.sign(values[name]) for name in operation.inputs]
    (first,) = vector_jacobian_product(lambda a: operation.compute(a, factors[1]), [signs[0]], g)
    (second,) = vector_jacobian_product(lambda b: operation.compute(factors[0], b), [signs[1]], g)
    return [signs[0] * first, signs[1] * second]


register_kind(
    Kind(
        "product_sum",
        rule=Rule(_exclusion, _exclusion),
        table=_table,
        at_zero=_at_zero,
        multiplies=True,
        rescale=midpoint,
        kernels="products",
    )
)
