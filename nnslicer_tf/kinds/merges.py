"""Merges: sums, differences, products, maxima and minima of tensors, with broadcasting."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf._kernels import pointwise
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.kind import Kind, Neurons, Node, Rule, register_kind
from nnslicer_tf.kinds.rescale import largest, midpoint, product

ops: Any = LazyModule("keras.ops")


def _add(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    return _excluded(theta, signs, output, [x.delta for x in inputs])


def _subtract(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    first, *others = (x.delta for x in inputs)
    return _excluded(theta, signs, output, [first, *(-other for other in others)])


def _multiply(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB with local values Δx_i times the other factors (see `Neurons.factor`)."""
    values = []
    for i, x in enumerate(inputs):
        product = x.delta.astype(np.float64)
        for k, other in enumerate(inputs):
            if k != i:
                product = product * other.factor
        values.append(product)
    return _excluded(theta, signs, output, values)


def _excluded(
    theta: float, signs: np.ndarray, output: Neurons, values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Propagate CONTRIB, with exclusion, using the given local values of every output neuron."""
    shape = signs.shape
    stacked = np.empty((len(values), *shape))
    for place, part in zip(stacked, values, strict=True):
        place[...] = part
    stacked = stacked.reshape(len(values), -1)
    # A product is not linear: its local values do not add up to Δy.
    total = output.value.ravel() if output.relative_to == "output" else stacked.sum(axis=0)
    received = pointwise.merge(signs.ravel(), total, stacked, theta)
    return [r.reshape(shape) for r in received]


def _extreme(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB from a maximum or minimum to every input equal to it."""
    return [signs * x.sign * (x.value == output.value) for x in inputs]


def _channel_extreme(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB to every input: the mean of maxima is not the maximum of means."""
    return [signs * x.sign for x in inputs]


def _add_at_zero(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list[Any]:
    return [g * s for s in signs]


def _subtract_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    return [g * signs[0], *(-g * s for s in signs[1:])]


def _multiply_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    received = []
    for i, s in enumerate(signs):
        product = g * s
        for k, name in enumerate(operation.inputs):
            if k != i:
                product = product * ops.sign(values[name])
        received.append(product)
    return received


def _extreme_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    y = values[operation.name]
    return [
        g * s * ops.cast(values[name] == y, "float32")
        for s, name in zip(signs, operation.inputs, strict=True)
    ]


register_kind(
    Kind(
        "add",
        reach="element",
        rule=Rule(_add, _add),
        at_zero=_add_at_zero,
        rescale=midpoint,
    )
)
register_kind(
    Kind(
        "subtract",
        reach="element",
        rule=Rule(_subtract, _subtract),
        at_zero=_subtract_at_zero,
        rescale=midpoint,
    )
)
register_kind(
    Kind(
        "multiply",
        reach="element",
        rule=Rule(_multiply, _multiply),
        at_zero=_multiply_at_zero,
        multiplies=True,
        rescale=product,
    )
)
for _kind, _rescale in (
    ("maximum_merge", largest),
    ("minimum_merge", partial(largest, further=lambda a, b: ops.minimum(a, b))),
):
    register_kind(
        Kind(
            _kind,
            reach="element",
            rule=Rule(_extreme, _channel_extreme),
            at_zero=_extreme_at_zero,
            rescale=_rescale,
        )
    )
