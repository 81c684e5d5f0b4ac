"""Masks: which positions of a sequence are data, and which are padding.

A mask is an operation of kind "mask" and carries no contributions. Its values are 1 and 0 in the
dtype of the graph, so that an analysis can run in float64.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.instrument.operations import Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable


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


def _masking(layer: layers.Masking, call: LayerCall) -> tuple[Step, ...]:
    def compute(x: Any) -> Any:
        present = ops.any(ops.not_equal(x, layer.mask_value), axis=-1, keepdims=True)
        return ops.where(present, x, ops.zeros_like(x))

    return (Step("scale", compute),)


LAYERS: LayerTable = {layers.Masking: _masking}
