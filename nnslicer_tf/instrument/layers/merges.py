"""Merges of several tensors: layers, operators or `keras.ops` calls."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.layers.normalisation import affine_step
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
    binary = _BINARY[kind]

    def operations_fn(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
        return (Step(kind, lambda *tensors: reduce(binary, tensors)),)

    return operations_fn


def _average(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Return an addition followed by a division by the number of tensors."""
    count = len(call.input_shapes)
    factor = np.asarray(1 / count)
    return (
        Step("add", lambda *tensors: reduce(ops.add, tensors), suffix=":sum"),
        affine_step(lambda: (factor, np.zeros_like(factor)), lambda x: x / count),
    )


def _operator(kind: str) -> OperationsFunction:
    """Return the operations function of an operator such as `x + y`.

    With a constant, the operator is a scale; between two tensors, it is a merge.
    """
    merge = _merge(kind)

    def operations_fn(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
        if not call.constants:
            return merge(operation, call)
        return (_constant_operator(operation, call),)

    return operations_fn


def _divide(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    if 1 not in call.constants:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' divides by a tensor; only division by a constant has a "
            "rule. Write it as a layer and register that with nnslicer_tf.register_layer."
        )
    return (_constant_operator(operation, call),)


def _constant_operator(operation: keras.Operation, call: LayerCall) -> Step:
    """Return the scale step of an affine operator with one constant argument."""

    def compute(x: Any) -> Any:
        arguments = dict(call.constants)
        arguments[1 - next(iter(arguments))] = x
        return operation.call(*(arguments[i] for i in sorted(arguments)))

    def read() -> tuple[np.ndarray, np.ndarray]:
        zero = np.zeros((1, *call.input_shapes[0]))
        offset, at_one = (
            ops.convert_to_numpy(compute(ops.convert_to_tensor(v)))[0].astype(np.float64)
            for v in (zero, zero + 1)
        )
        return at_one - offset, offset

    return affine_step(read, compute)


def _negative(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    return (affine_step(lambda: (np.asarray(-1.0), np.asarray(0.0)), operation.call),)


LAYERS: dict[type | str, OperationsFunction] = {
    layers.Add: _merge("add"),
    layers.Subtract: _merge("subtract"),
    layers.Multiply: _merge("multiply"),
    layers.Maximum: _merge("maximum_merge"),
    layers.Minimum: _merge("minimum_merge"),
    layers.Average: _average,
    "Add": _operator("add"),
    "Subtract": _operator("subtract"),
    "Multiply": _operator("multiply"),
    "Divide": _divide,
    "TrueDivide": _divide,
    "Maximum": _merge("maximum_merge"),
    "Minimum": _merge("minimum_merge"),
    "Negative": _negative,
}
