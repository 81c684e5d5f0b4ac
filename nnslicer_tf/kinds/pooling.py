"""Average and maximum pooling, sliding or global."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf._kernels import pools, sums
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds._windows import flat, windows
from nnslicer_tf.kinds.kind import Kind, Layout, Neurons, Node, Rule, register_kind
from nnslicer_tf.kinds.pointwise import one_to_one
from nnslicer_tf.kinds.rescale import largest, midpoint

ops: Any = LazyModule("keras.ops")


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


register_kind(
    Kind(
        "average",
        reach="channel",
        rule=Rule(_average, one_to_one),
        table=_taps,
        at_zero=_average_at_zero,
        rescale=midpoint,
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
    )
)
