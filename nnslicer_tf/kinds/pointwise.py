"""Operations on single values: rectify, other activation functions, scales."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.kind import Kind, Neurons, Node, Rule, register_kind
from nnslicer_tf.kinds.rescale import quotient, scale

keras: Any = LazyModule("keras")


def one_to_one(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray | None]:
    """Propagate sign(CONTRIB · Δy · Δx) to the first input; any others are masks."""
    return [signs * inputs[0].sign, *(None for _ in inputs[1:])]


def _rectify(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate sign(CONTRIB · Δy · Δx) where the (mean) output, and so the input, is positive."""
    return [signs * inputs[0].sign * (output.value > 0)]


def sign(x: np.ndarray) -> np.ndarray:
    """Return the signs as int8."""
    return (x > 0).view(np.int8) - (x < 0).view(np.int8)


def _at_zero(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list[Any]:
    return [g * signs[0], *(None for _ in signs[1:])]


def _rectify_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    return [g * signs[0] * keras.ops.cast(values[operation.name] > 0, "float32")]


register_kind(
    Kind(
        "rectify",
        reach="element",
        one_to_one=True,
        rule=Rule(_rectify, _rectify),
        at_zero=_rectify_at_zero,
        rescale=quotient,
    )
)
register_kind(
    Kind(
        "elementwise",
        reach="element",
        one_to_one=True,
        rule=Rule(one_to_one, one_to_one),
        at_zero=_at_zero,
        rescale=quotient,
    )
)
register_kind(
    Kind(
        "scale",
        reach="element",
        one_to_one=True,
        rule=Rule(one_to_one, one_to_one),
        at_zero=_at_zero,
        rescale=scale,
    )
)
