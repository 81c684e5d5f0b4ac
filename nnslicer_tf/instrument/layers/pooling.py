"""Average and maximum pooling: sliding, adaptive and global."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.masks import is_set
from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.layers.weighted_sums import require_channels_last
from nnslicer_tf.instrument.operations import MaskOf, Pooling, Step

OperationsFunction = Callable[[keras.Operation, LayerCall], tuple[Step, ...]]


def _sliding(kind: str) -> OperationsFunction:
    pool = ops.average_pool if kind == "average" else ops.max_pool

    def operations_fn(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
        require_channels_last(layer, call)
        space = call.input_shapes[0][:-1]

        def taps() -> np.ndarray:
            return windows.sliding(
                space, layer.pool_size, layer.strides, layer.padding, (1,) * len(space)
            )

        def compute(x: Any) -> Any:
            return pool(x, layer.pool_size, strides=layer.strides, padding=layer.padding)

        return (Step(kind, compute, Pooling(taps)),)

    return operations_fn


def _adaptive(kind: str) -> OperationsFunction:
    def operations_fn(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
        require_channels_last(layer, call)
        space, output_space = call.input_shapes[0][:-1], call.output_shape[:-1]
        return (Step(kind, layer.call, Pooling(lambda: windows.adaptive(space, output_space))),)

    return operations_fn


def _global(kind: str) -> OperationsFunction:
    reduce = ops.mean if kind == "average" else ops.max

    def operations_fn(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
        require_channels_last(layer, call)
        if isinstance(layer, layers.GlobalAveragePooling1D) and call.masks[0]:
            return (_masked_average(layer, call),)
        space = call.input_shapes[0][:-1]
        axes = tuple(range(1, len(space) + 1))

        def compute(x: Any) -> Any:
            return reduce(x, axis=axes, keepdims=layer.keepdims)

        return (Step(kind, compute, Pooling(lambda: windows.whole(space))),)

    return operations_fn


def _masked_average(layer: keras.Layer, call: LayerCall) -> Step:
    """Return the mean over the positions that are not padding."""

    def compute(x: Any, mask: Any) -> Any:
        present = is_set(mask)[..., None]
        total = ops.sum(ops.where(present, x, 0), axis=1, keepdims=layer.keepdims)
        return total / ops.sum(ops.cast(present, x.dtype), axis=1, keepdims=layer.keepdims)

    pooling = Pooling(lambda: windows.whole(call.input_shapes[0][:-1]))
    return Step("average", compute, pooling, sources=(0, MaskOf(0)))


def _reduction(kind: str) -> OperationsFunction:
    """Return the operations function of a mean or maximum over all spatial axes (`keras.ops`)."""

    def operations_fn(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
        space = call.input_shapes[0][:-1]
        rank = len(space) + 2
        axis = operation.axis
        axes = range(rank) if axis is None else sorted(a % rank for a in np.ravel(axis))
        if not space or list(axes) != list(range(1, rank - 1)):
            raise UnsupportedLayerError(
                f"Operation '{call.path}' reduces axis {axis} of a tensor with {rank} axes. "
                "Only a reduction over all spatial axes (global pooling) has a rule; write it "
                "as a layer and register that with nnslicer_tf.register_layer."
            )
        return (Step(kind, operation.call, Pooling(lambda: windows.whole(space))),)

    return operations_fn


LAYERS: dict[type | str, OperationsFunction] = {
    **dict.fromkeys(
        (layers.AveragePooling1D, layers.AveragePooling2D, layers.AveragePooling3D),
        _sliding("average"),
    ),
    **dict.fromkeys(
        (layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D), _sliding("maximum")
    ),
    **dict.fromkeys(
        (
            layers.GlobalAveragePooling1D,
            layers.GlobalAveragePooling2D,
            layers.GlobalAveragePooling3D,
        ),
        _global("average"),
    ),
    **dict.fromkeys(
        (layers.GlobalMaxPooling1D, layers.GlobalMaxPooling2D, layers.GlobalMaxPooling3D),
        _global("maximum"),
    ),
    **{f"AdaptiveAveragePooling{rank}D": _adaptive("average") for rank in (1, 2, 3)},
    **{f"AdaptiveMaxPooling{rank}D": _adaptive("maximum") for rank in (1, 2, 3)},
    "Mean": _reduction("average"),
    "Max": _reduction("maximum"),
}
