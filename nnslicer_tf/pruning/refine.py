"""Finer scores: what to do where contributions are equal (ours, not the paper's).

Contributions are whole numbers, many of them zero; weights tell synapses apart that
contributions do not.
"""

from collections.abc import Mapping

import numpy as np

from nnslicer_tf.instrument import InstrumentedModel

__all__ = ["ties_by_weight", "times_weight"]


def ties_by_weight(
    im: InstrumentedModel, scores: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return scores in the order of |score|, of which equal ones are in the order of |weight|.

    Args:
        im: The model.
        scores: Kernel name → whole numbers of the kernel's shape.
    """
    return {name: np.abs(s) + _share_of_largest(im, name) / 2 for name, s in scores.items()}


def times_weight(im: InstrumentedModel, scores: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return |score| · |weight|.

    Args:
        im: The model.
        scores: Kernel name → scores of the kernel's shape.
    """
    kernels = im.kernels
    return {name: np.abs(s) * np.abs(kernels[name].kernel()) for name, s in scores.items()}


def _share_of_largest(im: InstrumentedModel, name: str) -> np.ndarray:
    """Return |w| as a share of the kernel's largest, 0 … 1."""
    weights = np.abs(im.kernels[name].kernel().astype(np.float64))
    return weights / max(weights.max(), np.finfo(np.float64).tiny)
