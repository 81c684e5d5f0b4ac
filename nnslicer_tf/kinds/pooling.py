"""Average and maximum pooling, sliding or global."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf._kernels import pools, sums
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.instrument.windows import flat, windows
from nnslicer_tf.kinds.kind import AtZero, Kind, Layout, Neurons, Node, Rule, register_kind
from nnslicer_tf.kinds.pointwise import one_to_one
from nnslicer_tf.kinds.rescale import largest, midpoint


def _average(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray | None]:
    """Propagate CONTRIB with exclusion by Δx / k; padding does not count."""
    x, *mask = inputs
    received = sums.average(
        flat(signs),
        flat(output.reference),
        flat(x.delta),
        node.table,
        theta,
        (mask[0].captured > 0).sum(axis=1, keepdims=True) if mask else None,
        by_sum=output.is_relative_to_sum and x.mask is not None,
    )
    return [received.reshape(x.captured.shape), *(None for _ in mask)]


def _maximum(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB to every input equal to the output, up to rounding."""
    (x,) = inputs
    received = pools.maximum(
        flat(signs), flat(node.limit(output.value)), flat(x.value), flat(x.sign), node.table
    )
    return [received.reshape(x.value.shape)]


def _at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> list[Any]:
    """Propagate g of each window to its inputs; of a maximum's, to those equal to it."""
    shape, taps = operation.input_shapes[0], operation.params.taps
    batch, channels = ops.shape(signs[0])[0], signs[0].shape[-1]
    g = ops.reshape(g, (batch, -1, 1, channels))
    if operation.kind == "maximum":
        y = ops.reshape(values[operation.name], (batch, -1, 1, channels))
        marks = ops.cast(windows(shape, values[operation.inputs[0]], taps) >= y, "float32")
    else:
        marks = ops.ones_like(windows(shape, signs[0], taps))
    (received,) = vector_jacobian_product(
        lambda x: windows(shape, x, taps), [ops.zeros_like(signs[0])], marks * g
    )
    return [signs[0] * received, *(None for _ in operation.inputs[1:])]


def _table(operation: Operation, layout: Layout) -> np.ndarray:
    return operation.params.taps


for _name, _rule, _multipliers in (("average", _average, midpoint), ("maximum", _maximum, largest)):
    register_kind(
        Kind(_name, reach="channel", extreme=int(_name == "maximum")),
        Rule(_rule, one_to_one, table=_table),
        AtZero(_at_zero),
        _multipliers,
    )
