"""Operations at each position: functions of single values, scales, and merges of tensors.

A merge is a sum, difference, product, maximum or minimum, with broadcasting.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.kind import AtZero, Kind, Neurons, Node, Rule, kind_of, register_kind
from nnslicer_tf.kinds.rescale import largest, midpoint, product, quotient, scale


def sign(x: np.ndarray) -> np.ndarray:
    """Return the signs as int8."""
    return (x > 0).view(np.int8) - (x < 0).view(np.int8)


def one_to_one(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray | None]:
    """Propagate sign(CONTRIB · Δy · Δx) to the first input, through a ReLU only if active."""
    received = signs * inputs[0].sign
    if node.kind.name == "rectify":
        received = received * (output.value > 0)
    return [received, *(None for _ in inputs[1:])]


def _at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> list[Any]:
    received = g * signs[0]
    if operation.kind == "rectify":
        received = received * ops.cast(values[operation.name] > 0, "float32")
    return [received, *(None for _ in signs[1:])]


def _merge(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Return the inputs' CONTRIB with exclusion; local values are ±Δx_i, times other factors."""
    values = np.empty((len(inputs), *signs.shape))
    for k, x in enumerate(inputs):
        value = x.delta.astype(np.float64)
        if node.kind.multiplies:
            for other in (*inputs[:k], *inputs[k + 1 :]):
                value = value * other.factor
        values[k] = -value if k and node.kind.name == "subtract" else value
    # A product is not linear: its local values do not add up to Δy.
    total = output.value if output.relative_to == "output" else values.sum(axis=0)
    return list(kept_signs(values, theta * np.abs(total.astype(np.float64))) * signs)


def kept_signs(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the signs, int32, of local values `(inputs, …)`; 0 for those that are excluded."""
    order = np.argsort(np.abs(values), axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    below = np.abs(np.cumsum(ordered, axis=0)) < thresholds
    # A value is excluded if its prefix or a longer one has a sum below the threshold.
    excluded = np.logical_or.accumulate(below[::-1])[::-1]
    signs = np.zeros(values.shape, np.int32)
    kept = np.where(excluded, 0, np.sign(ordered)).astype(np.int32)
    np.put_along_axis(signs, order, kept, axis=0)
    return signs


def _extreme(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB from a maximum or minimum to every input equal to it, up to rounding."""
    sign, limit = node.kind.extreme, node.limit(output.value)
    return [signs * x.sign * (sign * x.value >= sign * limit) for x in inputs]


def _channel_extreme(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB to every input: the mean of maxima is not the maximum of means."""
    return [signs * x.sign for x in inputs]


def _merge_at_zero(operation: Operation, g: Any, signs: list, values: Mapping) -> list[Any]:
    received = []
    for k, (s, name) in enumerate(zip(signs, operation.inputs, strict=True)):
        part = g * s
        if operation.kind == "multiply":
            for other in (*operation.inputs[:k], *operation.inputs[k + 1 :]):
                part = part * ops.sign(values[other])
        elif sign := kind_of(operation).extreme:
            part = part * ops.cast(sign * values[name] >= sign * values[operation.name], "float32")
        elif operation.kind == "subtract" and k:
            part = -part
        received.append(part)
    return received


for _name, _multipliers in (("rectify", quotient), ("elementwise", quotient), ("scale", scale)):
    register_kind(
        Kind(_name, reach="element", one_to_one=True),
        Rule(one_to_one, one_to_one),
        AtZero(_at_zero),
        _multipliers,
    )

for _name, _rule, _multipliers in (
    ("add", Rule(_merge, _merge), midpoint),
    ("subtract", Rule(_merge, _merge), midpoint),
    ("multiply", Rule(_merge, _merge), product),
    ("maximum_merge", Rule(_extreme, _channel_extreme), largest),
    ("minimum_merge", Rule(_extreme, _channel_extreme), largest),
):
    _extreme_of = {"maximum_merge": 1, "minimum_merge": -1}.get(_name, 0)
    register_kind(
        Kind(_name, reach="element", multiplies=_name == "multiply", extreme=_extreme_of),
        _rule,
        AtZero(_merge_at_zero),
        _multipliers,
    )
