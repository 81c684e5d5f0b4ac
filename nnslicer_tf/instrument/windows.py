"""Tables of taps: the input position that each tap of a window reads, and what windows read.

Positions are row-major indices over the spatial axes; taps are row-major over the kernel.
A table takes 4 bytes times output positions times taps; it is built on first use.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops

_PADDING = -1
Sizes = Sequence[int]  # by spatial axis


def sliding(
    space: Sizes, kernel: Sizes, strides: Sizes, padding: str, dilation: Sizes
) -> np.ndarray:
    """Return the taps of a convolution or pooling window, `(output positions, taps)` int32.

    Padding is "valid", "same" or "causal"; a tap that falls into it is -1.
    """
    axes = []
    for extent, size, stride, step in zip(space, kernel, strides, dilation, strict=True):
        reach = (size - 1) * step + 1
        outputs, before = -(-extent // stride), 0
        if padding == "valid":
            outputs = (extent - reach) // stride + 1
        elif padding == "causal":
            before = reach - 1
        else:
            before = max((outputs - 1) * stride + reach - extent, 0) // 2
        axes.append((np.arange(outputs) * stride - before)[:, None] + np.arange(size) * step)
    return _combine(axes, space)


def transposed(
    space: Sizes, kernel: Sizes, strides: Sizes, padding: str, output_space: Sizes
) -> np.ndarray:
    """Return the taps of a transposed convolution; -1 where a tap reads no input."""
    axes = []
    for extent, size, stride, outputs in zip(space, kernel, strides, output_space, strict=True):
        before = max((extent - 1) * stride + size - outputs, 0) // 2 if padding == "same" else 0
        distance = np.arange(outputs)[:, None] + before - np.arange(size)
        axes.append(np.where(distance % stride == 0, distance // stride, _PADDING))
    return _combine(axes, space)


def whole(space: Sequence[int]) -> np.ndarray:
    """Return the taps of one window over all positions (global pooling)."""
    return np.arange(int(np.prod(space)), dtype=np.int32)[None, :]


def pointwise(positions: int) -> np.ndarray:
    """Return the taps of a one-position window at every position (dense, 1×1)."""
    return np.arange(positions, dtype=np.int32)[:, None]


def adaptive(space: Sequence[int], output_space: Sequence[int]) -> np.ndarray:
    """Return the taps of adaptive pooling: windows from ⌊i·n/m⌋ to ⌈(i+1)·n/m⌉."""
    axes = []
    for extent, outputs in zip(space, output_space, strict=True):
        i = np.arange(outputs)
        first, last = i * extent // outputs, -(-(i + 1) * extent // outputs)
        table = first[:, None] + np.arange((last - first).max())
        axes.append(np.where(table < last[:, None], table, _PADDING))
    return _combine(axes, space)


def _combine(axes: Sequence[np.ndarray], space: Sequence[int]) -> np.ndarray:
    """Merge one table per axis into one over row-major positions and taps."""
    combined = np.zeros((1, 1), dtype=np.int64)
    for table, extent in zip(axes, space, strict=True):
        earlier, taps = combined[:, None, :, None], table[None, :, None, :]
        inside = (earlier >= 0) & (taps >= 0) & (taps < extent)
        index = np.where(inside, earlier * extent + taps, _PADDING)
        combined = index.reshape(index.shape[0] * index.shape[1], -1)
    return combined.astype(np.int32)


def flat(x: np.ndarray) -> np.ndarray:
    """Return `(batch, *shape, channels)` as `(batch, positions, channels)`, contiguous."""
    return np.ascontiguousarray(x).reshape(len(x), -1, x.shape[-1])


def windows(shape: Sequence[int], x: Any, taps: np.ndarray) -> Any:
    """Return what the taps read, `(batch, positions, taps, channels)`, 0 for padding."""
    channels = shape[-1]
    padded = ops.pad(ops.reshape(x, (ops.shape(x)[0], -1, channels)), [[0, 0], [0, 1], [0, 0]])
    index = np.where(taps < 0, int(np.prod(shape[:-1])), taps).ravel()
    return ops.reshape(ops.take(padded, index, axis=1), (ops.shape(x)[0], *taps.shape, channels))
