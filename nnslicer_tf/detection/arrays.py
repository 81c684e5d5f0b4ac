"""Functions that take NumPy arrays and tensors of the backend alike.

Detectors score arrays. An attacker who knows the detector needs gradients, and scores tensors.
"""

from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf._numerics import runner_up_margin

ops: Any = LazyModule("keras.ops")


def array_module(x: Any) -> Any:
    """Return the module whose functions take x: `numpy` for arrays, else `keras.ops`."""
    return np if isinstance(x, np.ndarray) else ops


def operand(array: np.ndarray, x: Any) -> np.ndarray:
    """Return an array for use with x: as it is with arrays, float32 with tensors."""
    return array if isinstance(x, np.ndarray) else np.asarray(array, np.float32)


def margin(scores: Any, labels: Any) -> Any:
    """Return max over c ≠ label of score c - score of the label, (N,).

    Args:
        scores: (N, classes), an array or a tensor.
        labels: (N,) integers.
    """
    if isinstance(scores, np.ndarray):
        return runner_up_margin(scores, labels)
    own = ops.one_hot(labels, scores.shape[-1])
    others = ops.where(own > 0, -np.float32(np.inf), scores)
    return ops.max(others, axis=1) - ops.sum(own * scores, axis=1)


def mean_of(parts: list[Any]) -> Any:
    """Return the elementwise mean of arrays or tensors of one shape."""
    return sum(parts[1:], start=parts[0]) / len(parts)
