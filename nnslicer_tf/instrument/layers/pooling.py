"""Average and maximum pooling: sliding, adaptive and global."""

from functools import partial
from typing import Any

import numpy as np
from keras import layers, ops

from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.masks import is_set
from nnslicer_tf.instrument.layers.weighted_sums import require_channels_last
from nnslicer_tf.instrument.operations import MaskOf, Pooling, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable


def _sliding(layer: Any, call: LayerCall, kind: str) -> tuple[Step, ...]:
    require_channels_last(layer, call)
    space = call.input_shapes[0][:-1]
    pool = ops.average_pool if kind == "average" else ops.max_pool

    def taps() -> np.ndarray:
        ones = (1,) * len(space)
        return windows.sliding(space, layer.pool_size, layer.strides, layer.padding, ones)

    def compute(x: Any) -> Any:
        return pool(x, layer.pool_size, strides=layer.strides, padding=layer.padding)

    return (Step(kind, compute, Pooling(taps)),)


def _adaptive(layer: Any, call: LayerCall, kind: str) -> tuple[Step, ...]:
    require_channels_last(layer, call)
    space, output_space = call.input_shapes[0][:-1], call.output_shape[:-1]
    return (Step(kind, layer.call, Pooling(lambda: windows.adaptive(space, output_space))),)


def _global(layer: Any, call: LayerCall, kind: str) -> tuple[Step, ...]:
    """Return global pooling; a masked average over time excludes padding."""
    require_channels_last(layer, call)
    space = call.input_shapes[0][:-1]
    axes = tuple(range(1, len(space) + 1))
    keepdims = layer.keepdims
    pooling = Pooling(lambda: windows.whole(space))

    def compute(x: Any) -> Any:
        return (ops.mean if kind == "average" else ops.max)(x, axis=axes, keepdims=keepdims)

    def masked_mean(x: Any, mask: Any) -> Any:
        present = is_set(mask)[..., None]
        total = ops.sum(ops.where(present, x, 0), axis=1, keepdims=keepdims)
        return total / ops.sum(ops.cast(present, x.dtype), axis=1, keepdims=keepdims)

    if isinstance(layer, layers.GlobalAveragePooling1D) and call.masks[0]:
        return (Step("average", masked_mean, pooling, sources=(0, MaskOf(0))),)
    return (Step(kind, compute, pooling),)


LAYERS: LayerTable = {}
for _name, _kind in (("Average", "average"), ("Max", "maximum")):
    for _rank in ("1D", "2D", "3D"):
        LAYERS[getattr(layers, f"{_name}Pooling{_rank}")] = partial(_sliding, kind=_kind)
        LAYERS[getattr(layers, f"Global{_name}Pooling{_rank}")] = partial(_global, kind=_kind)
        LAYERS[f"Adaptive{_name}Pooling{_rank}"] = partial(_adaptive, kind=_kind)
