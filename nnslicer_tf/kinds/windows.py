"""Windows of weighted sums and pooling operations, on arrays and on tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops


def flat(x: np.ndarray) -> np.ndarray:
    """Return `(batch, *shape, channels)` as `(batch, positions, channels)`, contiguous."""
    return np.ascontiguousarray(x).reshape(len(x), -1, x.shape[-1])


def windows(shape: Sequence[int], x: Any, taps: np.ndarray) -> Any:
    """Return what the taps read, `(batch, positions, taps, channels)`, 0 for padding."""
    channels = shape[-1]
    by_position = ops.reshape(x, (ops.shape(x)[0], -1, channels))
    padded = ops.pad(by_position, [[0, 0], [0, 1], [0, 0]])
    last = int(np.prod(shape[:-1]))
    index = np.where(taps < 0, last, taps).ravel()
    read = ops.take(padded, index, axis=1)
    return ops.reshape(read, (ops.shape(x)[0], *taps.shape, channels))
