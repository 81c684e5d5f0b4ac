"""Masks: which positions of a sequence are data, and which are padding.

A mask is an operation of kind "mask" and carries no contributions. Its values are 1 and 0 in the
dtype of the graph, so that an analysis can run in float64.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.instrument.layers.registry import LayerCall, LayerTable
from nnslicer_tf.instrument.operations import Step


def mask_step(function: Callable[..., Any], *place: Any) -> Step:
    """Return a mask's step, of a function to bools; `place` are its suffix, sources and shape."""

    def compute(*inputs: Any) -> Any:
        dtype = keras.backend.standardize_dtype(inputs[0].dtype)
        is_floating = dtype.startswith(("float", "bfloat"))
        return ops.cast(function(*inputs), dtype if is_floating else "float32")

    return Step("mask", compute, None, *place)


def is_set(mask: Any) -> Any:
    """Convert the values of a mask operation to booleans."""
    return ops.greater(mask, 0.5)


def _comparison(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    """Return the mask of a comparison of two tensors, or of a tensor with a constant."""

    def compute(*tensors: Any) -> Any:
        stream = iter(tensors)
        constants = call.constants
        return operation.call(*(constants[i] if i in constants else next(stream) for i in (0, 1)))

    return (mask_step(compute),)


def _logical(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    return (mask_step(lambda *masks: operation.call(*map(is_set, masks))),)


def _masking(layer: layers.Masking, call: LayerCall) -> tuple[Step, ...]:
    """Return a scale whose factors are 1, and 0 at masked positions."""

    def compute(x: Any) -> Any:
        present = ops.any(ops.not_equal(x, layer.mask_value), axis=-1, keepdims=True)
        return ops.where(present, x, ops.zeros_like(x))

    return (Step("scale", compute),)


LAYERS: LayerTable = {
    layers.Masking: _masking,
    **dict.fromkeys(
        ("NotEqual", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual"), _comparison
    ),
    **dict.fromkeys(("LogicalAnd", "LogicalOr", "LogicalNot"), _logical),
    # A cast to bool is a mask, another one is no step: a graph computes in one dtype.
    "Cast": lambda operation, call: (
        (mask_step(lambda x: ops.not_equal(x, 0)),) if operation.dtype == "bool" else ()
    ),
}
