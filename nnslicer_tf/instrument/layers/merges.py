"""Merges of several tensors: layers, operators or `keras.ops` calls."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument._trace import TensorAt
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.probing import function_steps
from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.operations import Step

OperationsFunction = Callable[[keras.Operation, LayerCall], tuple[Step, ...]]

_BINARY = {
    "add": ops.add,
    "subtract": ops.subtract,
    "multiply": ops.multiply,
    "maximum_merge": ops.maximum,
    "minimum_merge": ops.minimum,
}


def _merge(kind: str) -> OperationsFunction:
    """Return the operations function of a merge, as a layer, an operator or a `keras.ops` call.

    Of two tensors it is an operation of its kind. With a constant it is a function of one tensor,
    such as a scale, or a ReLU for `ops.maximum(x, 0)`.
    """
    binary = _BINARY[kind]

    def operations_fn(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
        given = call.arguments["inputs"] if "inputs" in call.arguments else call.arguments.values()
        values = keras.tree.flatten(list(given))
        tensors = [value for value in values if isinstance(value, TensorAt)]
        merged = Step(kind, lambda *inputs: reduce(binary, inputs))
        if len(tensors) == len(values):
            return (merged,)
        if len(tensors) == 1:
            return _with_constants(values, binary, call)
        if kind == "subtract":
            raise UnsupportedLayerError(
                f"Operation '{call.path}' subtracts several tensors and constants. Add the "
                "constants in an operation of their own."
            )
        # The constants are applied to the merged tensors.
        constants = [TensorAt(0), *(v for v in values if not isinstance(v, TensorAt))]
        (step,) = _with_constants(constants, binary, call, call.output_shape)
        return (replace(merged, suffix=":merged"), step)

    return operations_fn


def _with_constants(
    values: Sequence[Any],
    binary: Callable[[Any, Any], Any],
    call: LayerCall,
    shape: tuple[int, ...] | None = None,
) -> tuple[Step, ...]:
    """Return the step of a merge of one tensor with constants.

    Args:
        values: The arguments: constants, and a `TensorAt` for the tensor.
        binary: Merges two of them.
        call: The call.
        shape: Shape of the tensor, if it is not the call's first.
    """
    shape = call.input_shapes[0] if shape is None else shape
    if call.output_shape != shape:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' repeats a tensor of shape {shape} along the axes of a "
            f"constant, to {call.output_shape}. Repeat it before, such as with keras.ops.repeat."
        )

    def compute(x: Any) -> Any:
        # An array of float64 would not be multiplied by a tensor of float32.
        as_tensor = lambda v: ops.cast(v, x.dtype) if hasattr(v, "shape") else v  # noqa: E731
        return reduce(binary, (x if isinstance(v, TensorAt) else as_tensor(v) for v in values))

    return function_steps(compute, shape, call.path, f"{binary.__name__} with a constant")


def _average(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Return an addition followed by a division by the number of tensors."""
    values = keras.tree.flatten(call.arguments["inputs"])
    factor = np.asarray(1 / len(values))
    half = affine_step(lambda: (factor, np.zeros_like(factor)), lambda x: x / len(values))
    *before, total = _merge("add")(layer, call)
    return (*before, replace(total, suffix=":sum"), half)


def _divide(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    values = list(call.arguments.values())
    if len(call.input_shapes) > 1:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' divides tensors by each other; only a division by "
            "a constant or of a constant has a rule. Write it as a layer and register that with "
            "nnslicer_tf.register_layer."
        )
    return _with_constants(values, ops.divide, call)


def _negative(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    return (affine_step(lambda: (np.asarray(-1.0), np.asarray(0.0)), operation.call),)


LAYERS: dict[type | str, OperationsFunction] = {
    layers.Add: _merge("add"),
    layers.Subtract: _merge("subtract"),
    layers.Multiply: _merge("multiply"),
    layers.Maximum: _merge("maximum_merge"),
    layers.Minimum: _merge("minimum_merge"),
    layers.Average: _average,
    "Add": _merge("add"),
    "Subtract": _merge("subtract"),
    "Multiply": _merge("multiply"),
    "Divide": _divide,
    "TrueDivide": _divide,
    "Maximum": _merge("maximum_merge"),
    "Minimum": _merge("minimum_merge"),
    "Negative": _negative,
}
