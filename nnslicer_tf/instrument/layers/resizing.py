"""Resizing of images: weighted sums with constant weights along each axis.

The layer runs on identity matrices to read off the weights. Each output pixel is a sum of a few
neighbours, which are moved to its place, scaled and added: first along height, then along width.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.weighted_sums import require_channels_last
from nnslicer_tf.instrument.operations import Source, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable


def _resize(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of a linear map along the height, and of one along the width."""
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
