"""Average and maximum pooling, sliding, adaptive and global; and resizing of images."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.masks import is_set
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.weighted_sums import require_channels_last
from nnslicer_tf.instrument.operations import MaskOf, Pooling, Source, Step
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


def _resize(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of a linear map along the height, and of one along the width.

    The layer runs on identity matrices to read off the weights. Each output pixel is a sum of a few
    neighbours, which are moved to its place, scaled and added.
    """
    require_channels_last(layer, call)
    if isinstance(layer, layers.UpSampling2D) and layer.interpolation == "nearest":
        return (Step("routing", layer.call),)
    height, width, channels = call.input_shapes[0]

    def run(x: np.ndarray) -> np.ndarray:
        return ops.convert_to_numpy(layer(x.astype(np.float32))).astype(np.float64)

    rows = run(np.eye(height)[:, :, None, None] * np.ones((width, 1)))[:, :, 0, 0].T
    columns = run(np.eye(width)[:, None, :, None] * np.ones((height, 1, 1)))[:, 0, :, 0].T
    x = np.random.default_rng(0).normal(size=(1, height, width, 1))
    if not np.allclose(run(x), np.einsum("yh,xw,nhwc->nyxc", rows, columns, x), atol=1e-4):
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) does more than weight rows and columns, "
            "such as padding. Apply it to the data, before the model."
        )
    total = lambda *parts: sum(parts[1:], parts[0])  # noqa: E731
    steps: list[Step] = []
    source: Source = 0
    for axis, name, matrix in ((1, ":rows", rows), (2, ":columns", columns)):
        shape = (len(rows), len(columns) if axis == 2 else width, channels)
        taps = np.count_nonzero(matrix, axis=1).max()
        # The neighbours with nonzero weights come first.
        order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :taps]
        weights = np.take_along_axis(matrix, order, axis=1)
        parts = []
        for t in range(taps):
            move = partial(ops.take, indices=order[:, t], axis=axis)
            factor = weights[:, t].reshape(-1, *(1,) * (3 - axis))
            parts.append(f"{name}{t}")
            moved = f"{parts[-1]}:moved"
            steps.append(Step("routing", move, None, moved, (source,), shape))
            steps.append(affine_step(factor, 0.0, parts[-1], (moved,), shape))
        if (weights == 1).all():
            steps = steps[:-1]
        elif len(parts) > 1:
            steps.append(Step("add", total, None, name, tuple(parts), shape))
        source = steps[-1].suffix
    return (*steps[:-1], replace(steps[-1], suffix=""))


LAYERS: LayerTable = {layers.UpSampling2D: _resize, layers.Resizing: _resize}
for _name, _kind in (("Average", "average"), ("Max", "maximum")):
    LAYERS[f"{_name}Pool"] = partial(_sliding, kind=_kind)  # of `keras.ops`
    for _rank in ("1D", "2D", "3D"):
        LAYERS[getattr(layers, f"{_name}Pooling{_rank}")] = partial(_sliding, kind=_kind)
        LAYERS[getattr(layers, f"Global{_name}Pooling{_rank}")] = partial(_global, kind=_kind)
        LAYERS[f"Adaptive{_name}Pooling{_rank}"] = partial(_adaptive, kind=_kind)
