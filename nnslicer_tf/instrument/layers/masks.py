"""Masks: which positions of a sequence are data, and which are padding.

A mask is a separate operation of kind "mask". Its values are 1 and 0, in the dtype in which the
graph computes, so that an analysis can run in float64. It carries no contributions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.operations import Source, Step

OperationsFunction = Callable[[keras.Operation, LayerCall], tuple[Step, ...]]


def mask_step(
    function: Callable[..., Any],
    suffix: str = "",
    sources: Sequence[Source] | None = None,
    shape: tuple[int, ...] | None = None,
) -> Step:
    """Return the step of a mask.

    Args:
        function: Maps tensors to a boolean tensor.
        suffix: The step's suffix.
        sources: The step's sources.
        shape: Shape of the mask, without the batch axis, if it differs from the output's.
    """

    def compute(*inputs: Any) -> Any:
        return ops.cast(function(*inputs), _floating(inputs[0]))

    return Step("mask", compute, None, suffix, sources, shape)


def is_set(mask: Any) -> Any:
    """Convert a mask that an operation computed to booleans."""
    return ops.greater(mask, 0.5)


def _floating(x: Any) -> str:
    dtype = keras.backend.standardize_dtype(x.dtype)
    return dtype if dtype.startswith(("float", "bfloat")) else "float32"


def _comparison(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    """Return the mask of a comparison of two tensors, or of a tensor and a constant."""

    def compute(*tensors: Any) -> Any:
        given = iter(tensors)
        arguments = (call.constants[i] if i in call.constants else next(given) for i in (0, 1))
        return operation.call(*arguments)

    return (mask_step(compute),)


def _logical(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    return (mask_step(lambda *masks: operation.call(*(is_set(mask) for mask in masks))),)


def _cast(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    """Return a mask for a cast to booleans, otherwise no step: a graph computes in one dtype."""
    if operation.dtype == "bool":
        return (mask_step(lambda x: ops.not_equal(x, 0)),)
    return ()


def _masking(layer: layers.Masking, call: LayerCall) -> tuple[Step, ...]:
    """Return a scale by 1, or by 0 at masked positions."""

    def compute(x: Any) -> Any:
        present = ops.any(ops.not_equal(x, layer.mask_value), axis=-1, keepdims=True)
        return ops.where(present, x, ops.zeros_like(x))

    return (Step("scale", compute),)


LAYERS: dict[type | str, OperationsFunction] = {
    layers.Masking: _masking,
    **dict.fromkeys(
        ("NotEqual", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual"), _comparison
    ),
    **dict.fromkeys(("LogicalAnd", "LogicalOr", "LogicalNot"), _logical),
    "Cast": _cast,
}
