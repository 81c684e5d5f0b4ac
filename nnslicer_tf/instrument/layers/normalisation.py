"""Layers that scale and shift each value: normalisation and rescaling."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from keras import layers, ops
from keras.config import epsilon

from nnslicer_tf.instrument.expansion import current
from nnslicer_tf.instrument.operations import Affine, Statistics, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable, Shape


def affine_step(
    factor: Any = 1.0, offset: Any = 0.0, *place: Any, compute: Callable | None = None
) -> Step:
    """Return a scale x · factor + offset of values or functions; `place` as in `product_step`."""

    def terms() -> list[Any]:
        return [term() if callable(term) else term for term in (factor, offset)]

    def read() -> tuple[np.ndarray, np.ndarray]:
        a, b = (ops.convert_to_numpy(term).astype(np.float64) for term in terms())
        return a, b

    def apply(x: Any) -> Any:
        a, b = (t if isinstance(t, float) else ops.cast(t, x.dtype) for t in terms())
        return x * a + b

    return Step("scale", compute or apply, Affine(read), *place)


def affine_of(compute: Callable, shape: Shape) -> Step:
    """Return the scale step of an elementwise affine function, from its values at 0 and 1."""

    def read() -> tuple[np.ndarray, np.ndarray]:
        zero = np.zeros((1, *shape))
        offset, at_one = (
            ops.convert_to_numpy(compute(ops.convert_to_tensor(v)))[0].astype(np.float64)
            for v in (zero, zero + 1)
        )
        return at_one - offset, offset

    return Step("scale", compute, Affine(read))


def _batch_normalization(layer: layers.BatchNormalization, call: LayerCall) -> tuple[Step, ...]:
    rank = len(call.output_shape) + 1
    axis = layer.axis % rank
    spread = tuple(-1 if a == axis else 1 for a in range(1, rank))

    def weights(convert: Callable) -> list[Any]:
        values = layer.moving_mean, layer.moving_variance, layer.beta, layer.gamma
        return [None if value is None else convert(value) for value in values]

    def compute(x: Any) -> Any:
        mean, variance, beta, gamma = weights(lambda value: ops.cast(value, x.dtype))
        return ops.batch_normalization(x, mean, variance, axis, beta, gamma, layer.epsilon)

    def read() -> tuple[np.ndarray, np.ndarray]:
        mean, variance, beta, gamma = weights(
            lambda value: ops.convert_to_numpy(value).astype(np.float64)
        )
        factor = (1.0 if gamma is None else gamma) / np.sqrt(variance + layer.epsilon)
        offset = (0.0 if beta is None else beta) - mean * factor
        return factor.reshape(spread), offset.reshape(spread)

    return (Step("scale", compute, Affine(read)),)


def _normalization(layer: layers.Normalization, call: LayerCall) -> tuple[Step, ...]:
    # Not layer.call, which computes in the layer's own precision.
    def compute(x: Any) -> Any:
        mean, variance = (ops.cast(value, x.dtype) for value in (layer.mean, layer.variance))
        deviation = ops.maximum(ops.sqrt(variance), epsilon())
        return mean + x * deviation if layer.invert else (x - mean) / deviation

    return (affine_of(compute, call.output_shape),)


def _statistics(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Normalise by the sample's own statistics, in the layer's precision; not an affine map.

    `layer` may be a function of `keras.ops`, whose weights are arguments of the call.
    """
    shape, kind = tuple(call.output_shape), type(layer).__name__
    rank = len(shape)
    compute, given = layer.call, layer
    if not isinstance(layer, layers.Layer):
        from nnslicer_tf.instrument.layers.functions import bound

        compute, given = bound(layer, call), SimpleNamespace(**dict(call.arguments))
    axes = [layer.axis] if isinstance(layer.axis, int) else layer.axis
    places = tuple(sorted(a - 1 if a > 0 else a + rank for a in axes))

    def spread(weight: Any, extents: Sequence[int]) -> Callable[[], Any]:
        if weight is None:
            return lambda: ops.ones((1,))
        return lambda: ops.reshape(ops.cast(current(weight), "float32"), extents)

    params = None
    extents = [n if a in places else 1 for a, n in enumerate(shape)]
    if isinstance(layer, layers.GroupNormalization):
        (axis,) = places
        split = (layer.groups, shape[axis] // layer.groups)
        grouped = (*shape[:axis], *split, *shape[axis + 1 :])
        others = tuple(a for a in range(rank + 1) if a != axis)
        gamma = spread(
            layer.gamma if layer.scale else None, [1] * axis + [*split] + [1] * (rank - axis - 1)
        )
        params = Statistics(grouped, others, True, True, layer.epsilon, gamma)
    elif isinstance(layer, layers.UnitNormalization):
        params = Statistics(shape, places, False, False, 0.0, spread(None, extents))
    elif kind in ("LayerNormalization", "LayerNorm") and not layer.rms_scaling:
        gamma = spread(given.gamma, extents)
        params = Statistics(shape, places, True, True, layer.epsilon or epsilon(), gamma)
    elif kind in ("RMSNormalization", "RMSNorm"):
        gamma = spread(given.scale, extents)
        params = Statistics(shape, places, False, True, layer.epsilon or epsilon(), gamma)
    return (Step("scale", compute, params),)


LAYERS: LayerTable = {
    layers.BatchNormalization: _batch_normalization,
    layers.Rescaling: lambda layer, call: (affine_step(lambda: layer.scale, lambda: layer.offset),),
    layers.Normalization: _normalization,
    **dict.fromkeys((layers.LayerNormalization, layers.GroupNormalization), _statistics),
    **dict.fromkeys((layers.UnitNormalization, "RMSNormalization"), _statistics),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), _statistics),  # functions of keras.ops
}
