"""Merges of several tensors: layers, operators or `keras.ops` calls."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.probing import function_steps
from nnslicer_tf.instrument.layers.registry import LayerCall, LayerTable, OperationsFunction, Shape
from nnslicer_tf.instrument.operations import Step
from nnslicer_tf.instrument.tracing import TensorAt

_BINARY = {
    "add": ops.add,
    "subtract": ops.subtract,
    "multiply": ops.multiply,
    "maximum_merge": ops.maximum,
    "minimum_merge": ops.minimum,
}


def _merge(kind: str) -> OperationsFunction:
    """Return a merge's operations; with constants, it is a function of one tensor like a ReLU."""
    binary = _BINARY[kind]

    def operations_fn(layer: Any, call: LayerCall) -> tuple[Step, ...]:
        values = keras.tree.flatten(list(call.arguments.get("inputs", call.arguments.values())))
        constants = [value for value in values if not isinstance(value, TensorAt)]
        merged = Step(kind, lambda *inputs: reduce(binary, inputs))
        if not constants:
            return (merged,)
        if len(values) - len(constants) == 1:
            return _with_constants(values, binary, call, call.input_shapes[0])
        if kind == "subtract":
            raise UnsupportedLayerError(
                f"Operation '{call.path}' subtracts several tensors and constants. Add the "
                "constants in an operation of their own."
            )
        # The constants are applied to the merged tensors.
        steps = _with_constants([TensorAt(0), *constants], binary, call, call.output_shape)
        return (replace(merged, suffix=":merged"), *steps)

    return operations_fn


def _with_constants(
    values: Sequence[Any], binary: Callable[[Any, Any], Any], call: LayerCall, shape: Shape
) -> tuple[Step, ...]:
    """Return the steps of a merge of constants with one tensor, a `TensorAt` in `values`."""
    if call.output_shape != shape:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' repeats a tensor of shape {shape} along the axes of a "
            f"constant, to {call.output_shape}. Repeat it before, such as with keras.ops.repeat."
        )

    def compute(x: Any) -> Any:
        # An array of float64 would not be multiplied by a tensor of float32.
        arrays = (ops.cast(v, x.dtype) if hasattr(v, "shape") else v for v in values)
        return reduce(binary, (x if isinstance(v, TensorAt) else v for v in arrays))

    return function_steps(compute, shape, call.path, f"{binary.__name__} with a constant")


def _average(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return a sum, divided by the number of tensors."""
    count = len(keras.tree.flatten(call.arguments["inputs"]))
    *before, total = _merge("add")(layer, call)
    mean = affine_step(1 / count, compute=lambda x: x / count)
    return (*before, replace(total, suffix=":sum"), mean)


def _divide(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    if len(call.input_shapes) > 1:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' divides tensors by each other; only a division by "
            "a constant or of a constant has a rule. Write it as a layer and register that with "
            "nnslicer_tf.register_layer."
        )
    values = list(call.arguments.values())
    return _with_constants(values, ops.divide, call, call.input_shapes[0])


LAYERS: LayerTable = {
    layers.Average: _average,
    **dict.fromkeys(("Divide", "TrueDivide"), _divide),
    "Negative": lambda operation, call: (affine_step(-1.0, compute=operation.call),),
}
for _kind in _BINARY:  # a layer, and what is behind an operator or a function of `keras.ops`
    _name = _kind.removesuffix("_merge").capitalize()
    LAYERS[getattr(layers, _name)] = LAYERS[_name] = _merge(_kind)
