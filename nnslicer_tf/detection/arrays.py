"""Functions of NumPy arrays (for detection) or tensors (for gradients in adaptive attacks)."""

from typing import Any

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf._numerics import runner_up_margin


def array_module(x: Any) -> Any:
    """Return the module whose functions take x: `numpy` for arrays, else `keras.ops`."""
    return np if isinstance(x, np.ndarray) else ops


def operand(array: np.ndarray, x: Any) -> np.ndarray:
    """Return an array for use with x: unchanged if x is an array, float32 if it is a tensor."""
    return array if isinstance(x, np.ndarray) else np.asarray(array, np.float32)


def margin(scores: Any, labels: Any) -> Any:
    """Return max over c ≠ label of score_c - score_label, (N,), from scores (N, classes)."""
    if isinstance(scores, np.ndarray):
        return runner_up_margin(scores, labels)
    own = ops.one_hot(labels, scores.shape[-1])
    others = ops.where(own > 0, -np.float32(np.inf), scores)
    return ops.max(others, axis=1) - ops.sum(own * scores, axis=1)
