"""Merges of several tensors, products of two among them: layers, operators, `keras.ops` calls."""

import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.expansion import current
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.probing import function_steps
from nnslicer_tf.instrument.operations import ProductSum, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable, Shape
from nnslicer_tf.instrument.tracing import TensorAt
from nnslicer_tf.instrument.upstream import add

_BINARY = {
    "add": add,
    "subtract": ops.subtract,
    "multiply": ops.multiply,
    "maximum_merge": ops.maximum,
    "minimum_merge": ops.minimum,
}


def _merge(layer: Any, call: LayerCall, kind: str) -> tuple[Step, ...]:
    """Return a merge's operations; with constants, it is a function of one tensor like a ReLU."""
    binary = _BINARY[kind]
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


def _with_constants(
    values: Sequence[Any], binary: Callable[[Any, Any], Any], call: LayerCall, shape: Shape
) -> tuple[Step, ...]:
    """Return the steps of a merge of constants with one tensor, a `TensorAt` in `values`."""
    before: list[Step] = []
    if call.output_shape != shape:  # it is repeated along the axes of a constant
        spread = lambda x: ops.broadcast_to(x, (ops.shape(x)[0], *call.output_shape))  # noqa: E731
        before = [Step("routing", spread, None, ":spread", shape=call.output_shape)]
    name, has_array = binary.__name__, any(hasattr(v, "shape") for v in values)
    if has_array and name in ("multiply", "divide", "add", "subtract"):
        step = _affine(values, name)
        if step is not None:
            return (*before, step)

    def compute(x: Any) -> Any:
        # An array of float64 would not be multiplied by a tensor of float32.
        known = (ops.cast(current(v), x.dtype) if hasattr(v, "shape") else v for v in values)
        return reduce(binary, (x if isinstance(v, TensorAt) else v for v in known))

    steps = function_steps(compute, call.output_shape, call.path, f"{name} with a constant")
    return (*before, *steps)


def _affine(values: Sequence[Any], name: str) -> Step | None:
    """Return the scale step of a tensor with one array; None for a division by the tensor."""
    if len(values) != 2:
        return None
    first = isinstance(values[0], TensorAt)

    def constant() -> Any:
        value = current(values[1] if first else values[0])
        return ops.cast(value, "float32") if "float" not in str(value.dtype) else value

    if name == "multiply":
        return affine_step(constant)
    if name == "divide":
        return affine_step(lambda: 1 / constant()) if first else None
    if name == "add":
        return affine_step(1.0, constant)
    return affine_step(1.0, lambda: -constant()) if first else affine_step(-1.0, constant)


def _average(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    count = len(keras.tree.flatten(call.arguments["inputs"]))
    *before, total = _merge(layer, call, "add")
    mean = affine_step(1 / count, compute=lambda x: x / count)
    return (*before, replace(total, suffix=":sum"), mean)


def _divide(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    return _with_constants(list(call.arguments.values()), ops.divide, call, call.input_shapes[0])


def product_step(equation: str, *place: Any) -> Step:
    """Return the step of a `ProductSum`; `place` are its suffix, sources, shape and mask."""
    return Step("product_sum", partial(ops.einsum, equation), ProductSum(equation), *place)


def _dot(layer: layers.Dot, call: LayerCall) -> tuple[Step, ...]:
    ranks = [len(shape) + 1 for shape in call.input_shapes]
    axes = (layer.axes, layer.axes) if isinstance(layer.axes, int) else layer.axes
    first, second = (axis % rank for axis, rank in zip(axes, ranks, strict=True))
    a = "b" + string.ascii_uppercase[: ranks[0] - 1]
    b = "b" + string.ascii_uppercase[ranks[0] : ranks[0] + ranks[1] - 1]
    summed = a[first]
    b = b[:second] + summed + b[second + 1 :]
    outputs = a.replace(summed, "") + b[1:].replace(summed, "")
    step = product_step(f"{a},{b}->{outputs}")
    if len(outputs) == 1:  # Keras adds an axis
        inner = step.compute
        step = replace(step, compute=lambda x, y: inner(x, y)[:, None])
    if not layer.normalize:
        return (step,)
    suffixes = (":first", ":second")
    factors = zip((0, 1), (first, second), suffixes, call.input_shapes, strict=True)
    normalised = (
        Step("scale", partial(ops.normalize, axis=axis), None, suffix, (place,), shape)
        for place, axis, suffix, shape in factors
    )
    return (*normalised, replace(step, sources=suffixes))


def _mixing(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    raise UnsupportedLayerError(
        f"Operation '{call.path}' ({type(operation).__name__}) pairs every sample with every "
        "other; the analyses require samples to be independent. Use keras.ops.matmul, "
        "keras.ops.einsum or keras.layers.Dot."
    )


LAYERS: LayerTable = {
    layers.Average: _average,
    layers.Dot: _dot,
    **dict.fromkeys(("Dot", "Tensordot"), _mixing),
    **dict.fromkeys(("Divide", "TrueDivide"), _divide),
    "Negative": lambda operation, call: (affine_step(-1.0, compute=operation.call),),
}
for _kind in _BINARY:  # a layer, and what is behind an operator or a function of `keras.ops`
    _name = _kind.removesuffix("_merge").capitalize()
    LAYERS[getattr(layers, _name)] = LAYERS[_name] = partial(_merge, kind=_kind)
