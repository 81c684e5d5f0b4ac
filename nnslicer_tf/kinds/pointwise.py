"""Operations on single values: rectify, other activation functions, scales."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.kind import Kind, Neurons, Node, Rule, register_kind
from nnslicer_tf.kinds.rescale import quotient, scale

ops: Any = LazyModule("keras.ops")


def sign(x: np.ndarray) -> np.ndarray:
    """Return the signs as int8."""
    return (x > 0).view(np.int8) - (x < 0).view(np.int8)


def one_to_one(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray | None]:
    """Propagate sign(CONTRIB · Δy · Δx) to the first input; any others are masks.

    For a ReLU, only where the (mean) output, and so the input, is positive.
    """
    received = signs * inputs[0].sign
    if node.kind.name == "rectify":
        received = received * (output.value > 0)
    return [received, *(None for _ in inputs[1:])]


def _at_zero(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list[Any]:
    received = g * signs[0]
    if operation.kind == "rectify":
        received = received * ops.cast(values[operation.name] > 0, "float32")
    return [received, *(None for _ in signs[1:])]


for _name, _rescale in (("rectify", quotient), ("elementwise", quotient), ("scale", scale)):
    register_kind(
        Kind(
            _name,
            reach="element",
            one_to_one=True,
            rule=Rule(one_to_one, one_to_one),
            at_zero=_at_zero,
            rescale=_rescale,
        )
    )
