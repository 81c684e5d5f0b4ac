"""Activation layers and functions, alone or fused into a weighted sum."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import keras
import numpy as np
from keras import activations, layers

from nnslicer_tf.instrument.expansion import current
from nnslicer_tf.instrument.layers.masks import mask_step
from nnslicer_tf.instrument.operations import Elementwise, MaskOf, Softmax, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable, registered

# Inputs at which the piecewise-linear functions change their slope.
_KNOTS = {
    "linear": (),
    "relu": (0.0,),
    "relu6": (0.0, 6.0),
    "leaky_relu": (0.0,),
    "hard_sigmoid": (-3.0, 3.0),
    "hard_tanh": (-1.0, 1.0),
    "soft_shrink": (-0.5, 0.5),
    "absolute": (0.0,),
}
_MIXING = ("softmax", "log_softmax", "sparsemax", "glu")
# Input of a softmax for a masked entry, which makes its probability exactly 0.
_MASKED = -1e9


def activation_step(function: Callable, compute: Callable | None = None, suffix: str = "") -> Step:
    """Return the step of an activation function, Keras's or not, computed by `compute` if given."""
    name = getattr(function, "__name__", type(function).__name__)
    if function is activations.softmax:
        return softmax_step(-1, suffix)
    if getattr(activations, name, None) is not function:
        return Step("elementwise", compute or function, Elementwise(name), suffix)
    params = Elementwise(name, _KNOTS.get(name), mixes=name in _MIXING)
    kind = "rectify" if name in ("relu", "relu6") else "elementwise"
    return Step(kind, compute or function, params, suffix)


def softmax_step(axis: int | Sequence[int], *place: Any, of_layer: bool = True) -> Step:
    """Return a softmax's step; axes as in Keras, a second source masks; `place` as in `Step`.

    A row that is masked as a whole is what the layer `Softmax` makes of it, if `of_layer`.
    """
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    zeroed = of_layer and _masked_rows_are_zero()

    def compute(x: Any, *masks: Any) -> Any:
        for entries in masks:
            x = keras.ops.where(entries > 0.5, x, keras.ops.full_like(x, _MASKED))
        if len(axes) == 1:
            rows = keras.ops.softmax(x, axis=axes[0])
        else:
            rows = keras.ops.exp(x - keras.ops.max(x, axis=axes, keepdims=True))
            rows = rows / keras.ops.sum(rows, axis=axes, keepdims=True)
        for entries in masks if zeroed else ():
            rows = keras.ops.where(entries > 0.5, rows, keras.ops.zeros_like(rows))
        return rows

    return Step("softmax", compute, Softmax("softmax", axes=axes), *place)


@cache
def _masked_rows_are_zero() -> bool:
    """Whether this version of Keras gives 0, not 1 / n, where all n entries of a row are masked."""
    masked = keras.layers.Softmax()(np.zeros((1, 2)), mask=np.zeros((1, 2), bool))
    return not keras.ops.convert_to_numpy(masked).any()


def with_activation(step: Step, activation: Callable | None) -> tuple[Step, ...]:
    """Return `step`, followed by the fused activation if there is one."""
    if activation is None or activation is activations.linear:
        return (step,)
    pre = replace(step, suffix=":pre", shape=None)
    if isinstance(activation, layers.Layer):
        operations_fn = registered(type(activation))
        if operations_fn is not None:
            return (pre, *operations_fn(activation, LayerCall("", [()], [()])))
    return (pre, activation_step(activation))


def _activation(layer: layers.Activation, call: LayerCall) -> tuple[Step, ...]:
    if layer.activation is activations.linear:
        return (Step("routing", lambda x: x),)
    return (activation_step(layer.activation),)


def _relu(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return a rectify for max(x, 0), clipped from above or not; otherwise an elementwise step."""
    if not hasattr(layer, "max_value"):  # `keras.ops.relu`
        return (activation_step(activations.relu, layer.call),)
    slope, top, threshold = layer.negative_slope, layer.max_value, layer.threshold
    compute = partial(activations.relu, negative_slope=slope, max_value=top, threshold=threshold)
    if threshold != 0:
        return (Step("elementwise", compute, Elementwise("relu", mixes=False)),)
    knots = (0.0,) if top is None else (0.0, float(top))
    kind = "elementwise" if slope else "rectify"
    return (Step(kind, compute, Elementwise("relu", knots, mixes=False)),)


def _prelu(layer: layers.PReLU, call: LayerCall) -> tuple[Step, ...]:
    def compute(x: Any) -> Any:
        if not layer.built:  # an activation inside another layer, before its first call
            layer.build(x.shape)
        alpha = keras.ops.cast(layer.alpha, x.dtype)
        return keras.ops.maximum(x, 0) + alpha * keras.ops.minimum(x, 0)

    return (Step("elementwise", compute, Elementwise("prelu", (0.0,), mixes=False)),)


def _softmax(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    mask = call.arguments.get("mask")
    if mask is None:
        return (softmax_step(layer.axis, "", (0, MaskOf(0)) if any(call.masks) else None),)
    # A constant, such as that of earlier positions

    def counts(x: Any) -> Any:
        return keras.ops.broadcast_to(keras.ops.cast(current(mask), "bool"), keras.ops.shape(x))

    return (
        mask_step(counts, ":mask", (0,), call.output_shape),
        softmax_step(layer.axis, "", (0, ":mask"), None, ":mask"),
    )


def _function(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return the step of a function by its class, such as `ELU` or that behind `keras.ops.tanh`."""
    class_name = type(layer).__name__
    name = _NAMES.get(class_name, class_name.lower())
    params = Elementwise(name, _KNOTS.get(name), mixes=name in _MIXING)
    return (Step("rectify" if name == "relu6" else "elementwise", layer.call, params),)


def _clip(operation: Any, call: LayerCall) -> tuple[Step, ...]:
    knots = (float(operation.x_min), float(operation.x_max))
    return (Step("elementwise", operation.call, Elementwise("clip", knots, mixes=False)),)


# Functions whose name is not that of their class in lower case.
_NAMES = {
    **dict.fromkeys(("LeakyReLU", "LeakyRelu"), "leaky_relu"),
    "HardSigmoid": "hard_sigmoid",
    "HardTanh": "hard_tanh",
    "LogSoftmax": "log_softmax",
}
LAYERS: LayerTable = {
    layers.Activation: _activation,
    layers.ReLU: _relu,
    layers.PReLU: _prelu,
    layers.Softmax: _softmax,
    **dict.fromkeys((layers.ELU, layers.LeakyReLU), _function),
    # keras.ops and keras.activations called in a functional model
    **dict.fromkeys(("ReLU", "Relu"), _relu),
    "Softmax": _softmax,
    "Clip": _clip,
    **dict.fromkeys(
        (
            *("LeakyRelu", "Relu6", "HardSigmoid", "HardTanh", "Sigmoid", "Tanh", "LogSoftmax"),
            *("Celu", "Elu", "Exp", "Gelu", "HardSilu", "HardSwish", "LogSigmoid", "Log"),
            *("Mish", "Selu", "Silu", "Softplus", "Softsign", "Sqrt", "Square", "Absolute"),
        ),
        _function,
    ),
}
