"""Layers that scale and shift each value: normalisation and rescaling."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras.config import epsilon

from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.operations import Affine, Statistics, Step


def affine_step(read: Callable[[], tuple[np.ndarray, np.ndarray]], compute: Callable) -> Step:
    """Return a scale step for x · factor + offset; `read` returns factor and offset."""
    return Step("scale", compute, Affine(read))


def affine_of(compute: Callable, shape: tuple[int, ...]) -> Step:
    """Return the scale step of an affine function of single values, read off at 0 and at 1."""

    def read() -> tuple[np.ndarray, np.ndarray]:
        zero = np.zeros((1, *shape))
        offset, at_one = (
            ops.convert_to_numpy(compute(ops.convert_to_tensor(v)))[0].astype(np.float64)
            for v in (zero, zero + 1)
        )
        return at_one - offset, offset

    return affine_step(read, compute)


def _batch_normalization(layer: layers.BatchNormalization, call: LayerCall) -> tuple[Step, ...]:
    rank = len(call.output_shape) + 1
    axis = layer.axis % rank
    spread = tuple(-1 if a == axis else 1 for a in range(1, rank))

    def compute(x: Any) -> Any:
        def cast(weight: Any) -> Any:
            return None if weight is None else ops.cast(weight, x.dtype)

        return ops.batch_normalization(
            x,
            cast(layer.moving_mean),
            cast(layer.moving_variance),
            axis=axis,
            offset=cast(layer.beta),
            scale=cast(layer.gamma),
            epsilon=layer.epsilon,
        )

    def read() -> tuple[np.ndarray, np.ndarray]:
        def array(weight: Any, default: float) -> np.ndarray:
            if weight is None:
                return np.full(layer.moving_mean.shape, default)
            return ops.convert_to_numpy(weight).astype(np.float64)

        deviation = np.sqrt(array(layer.moving_variance, 1) + layer.epsilon)
        factor = array(layer.gamma, 1) / deviation
        offset = array(layer.beta, 0) - array(layer.moving_mean, 0) * factor
        return factor.reshape(spread), offset.reshape(spread)

    return (affine_step(read, compute),)


def _rescaling(layer: layers.Rescaling, call: LayerCall) -> tuple[Step, ...]:
    def read() -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(layer.scale, np.float64), np.asarray(layer.offset, np.float64)

    def compute(x: Any) -> Any:
        return x * ops.cast(layer.scale, x.dtype) + ops.cast(layer.offset, x.dtype)

    return (affine_step(read, compute),)


def _normalization(layer: layers.Normalization, call: LayerCall) -> tuple[Step, ...]:
    # Not layer.call, which computes in the layer's own precision.
    def compute(x: Any) -> Any:
        mean, variance = (ops.cast(value, x.dtype) for value in (layer.mean, layer.variance))
        deviation = ops.maximum(ops.sqrt(variance), epsilon())
        return mean + x * deviation if layer.invert else (x - mean) / deviation

    return (affine_of(compute, call.output_shape),)


def _layer_scale(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Multiply each channel by a weight (ConvNeXt)."""

    def read() -> tuple[np.ndarray, np.ndarray]:
        gamma = ops.convert_to_numpy(layer.gamma).astype(np.float64)
        return gamma, np.zeros_like(gamma)

    return (affine_step(read, lambda x: x * ops.cast(layer.gamma, x.dtype)),)


def _statistics(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Normalise by statistics of the sample itself: a scale, but not an affine map.

    It computes in the layer's own precision, whatever that of its input.
    """
    return (Step("scale", layer.call, _statistics_of(layer, tuple(call.output_shape))),)


def _statistics_of(layer: keras.Layer, shape: tuple[int, ...]) -> Statistics | None:
    """Return the statistics by which a Keras layer normalises, None if they are not known."""
    rank = len(shape)

    def places(axis: int | Sequence[int]) -> tuple[int, ...]:
        axes = [axis] if isinstance(axis, int) else axis
        return tuple(sorted(a - 1 if a > 0 else a + rank for a in axes))

    def spread(weight: Any, extents: Sequence[int]) -> Callable[[], Any]:
        if weight is None:
            return lambda: ops.ones((1,))
        return lambda: ops.reshape(ops.cast(weight, "float32"), extents)

    if isinstance(layer, layers.GroupNormalization):
        (axis,) = places(layer.axis)
        split = (layer.groups, shape[axis] // layer.groups)
        grouped = (*shape[:axis], *split, *shape[axis + 1 :])
        axes = tuple(a for a in range(rank + 1) if a != axis)
        extents = [1] * axis + list(split) + [1] * (rank - axis - 1)
        weight = layer.gamma if layer.scale else None
        return Statistics(grouped, axes, True, True, layer.epsilon, spread(weight, extents))
    axes = places(layer.axis)
    extents = [n if a in axes else 1 for a, n in enumerate(shape)]
    if isinstance(layer, layers.UnitNormalization):
        return Statistics(shape, axes, False, False, 0.0, spread(None, extents))
    if isinstance(layer, layers.LayerNormalization) and not layer.rms_scaling:
        return Statistics(shape, axes, True, True, layer.epsilon, spread(layer.gamma, extents))
    if type(layer).__name__ == "RMSNormalization":
        return Statistics(shape, axes, False, True, layer.epsilon, spread(layer.scale, extents))
    return None


def _residual_scale(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Add the second input, scaled by a constant, to the first (InceptionResNetV2)."""
    factor = float(layer.scale)

    def read() -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(factor), np.asarray(0.0)

    return (
        Step("scale", lambda x: x * factor, Affine(read), suffix=":scaled", sources=(1,)),
        Step("add", lambda x, y: x + y, sources=(0, ":scaled")),
    )


LAYERS: dict[type | str, Callable[[keras.Operation, LayerCall], tuple[Step, ...]]] = {
    layers.BatchNormalization: _batch_normalization,
    layers.Rescaling: _rescaling,
    layers.Normalization: _normalization,
    layers.LayerNormalization: _statistics,
    layers.GroupNormalization: _statistics,
    layers.UnitNormalization: _statistics,
    "RMSNormalization": _statistics,
    "LayerScale": _layer_scale,
    "CustomScaleLayer": _residual_scale,
}
