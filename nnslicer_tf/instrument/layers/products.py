"""Sums of products of two activations: `Dot`, `matmul` and `einsum`."""

import string
from dataclasses import replace
from functools import partial
from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.operations import ProductSum, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable


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
    normalised = (
        Step("scale", partial(ops.normalize, axis=axis), None, suffix, (place,), shape)
        for place, (axis, suffix, shape) in enumerate(
            zip((first, second), suffixes, call.input_shapes, strict=True)
        )
    )
    return (*normalised, replace(step, sources=suffixes))


def _mixing(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    raise UnsupportedLayerError(
        f"Operation '{call.path}' ({type(operation).__name__}) pairs every sample with every "
        "other; the analyses require samples to be independent. Use keras.ops.matmul, "
        "keras.ops.einsum or keras.layers.Dot."
    )


LAYERS: LayerTable = {
    layers.Dot: _dot,
    "Dot": _mixing,
    "Tensordot": _mixing,
}
