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
    size, strides = (  # functions of `keras.ops` take one number for all axes, and None
        tuple(int(n) for n in np.broadcast_to(given, len(space)))
        for given in (layer.pool_size, layer.strides or layer.pool_size)
    )
    how = (size, strides, layer.padding)
    pool = ops.average_pool if kind == "average" else ops.max_pool
    taps = partial(windows.sliding, space, *how, (1,) * len(space))
    return (Step(kind, lambda x: pool(x, *how), Pooling(taps)),)


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
    pool = partial(ops.mean if kind == "average" else ops.max, axis=axes, keepdims=keepdims)

    def masked_mean(x: Any, mask: Any) -> Any:
        present = is_set(mask)[..., None]
        total = ops.sum(ops.where(present, x, 0), axis=1, keepdims=keepdims)
        return total / ops.sum(ops.cast(present, x.dtype), axis=1, keepdims=keepdims)

    if isinstance(layer, layers.GlobalAveragePooling1D) and call.masks[0]:
        return (Step("average", masked_mean, pooling, sources=(0, MaskOf(0))),)
    return (Step(kind, pool, pooling),)


LAYERS: LayerTable = {}
for _name, _kind in (("Average", "average"), ("Max", "maximum")):
    LAYERS[f"{_name}Pool"] = partial(_sliding, kind=_kind)  # of `keras.ops`
    for _rank in ("1D", "2D", "3D"):
        LAYERS[getattr(layers, f"{_name}Pooling{_rank}")] = partial(_sliding, kind=_kind)
        LAYERS[getattr(layers, f"Global{_name}Pooling{_rank}")] = partial(_global, kind=_kind)
        LAYERS[f"Adaptive{_name}Pooling{_rank}"] = partial(_adaptive, kind=_kind)
