"""Scores combined with weights, to order equal contributions (ours, not the paper's).

Contributions are integers, and many are zero, so many synapses have equal contributions; their
weights then decide between them.
"""

from collections.abc import Mapping

import numpy as np

from nnslicer_tf.instrument import InstrumentedModel

# With this, synapses without any score still differ by weight.
_FLOOR = 0.05


def ties_by_weight(
    im: InstrumentedModel, scores: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return scores that order synapses by |score|, and ties by |weight|.

    Args:
        im: The model.
        scores: Kernel name → integers of the kernel's shape.
    """
    return {name: np.abs(s) + _share_of_largest(im, name) / 2 for name, s in scores.items()}


def times_weight(
    im: InstrumentedModel, scores: Mapping[str, np.ndarray], power: float = 1.0
) -> dict[str, np.ndarray]:
    """Return |weight| · (|score| / its mean in the kernel + 0.05) ^ power.

    Unlike plain scores, these can be compared between kernels, as in `global_ratios`.

    Args:
        im: The model.
        scores: Kernel name → scores of the kernel's shape.
        power: Influence of the scores relative to the weights; 0 for none.
    """
    kernels = im.kernels
    return {
        name: np.abs(kernels[name].kernel()) * (_over_mean(np.abs(s)) + _FLOOR) ** power
        for name, s in scores.items()
    }


def _over_mean(magnitudes: np.ndarray) -> np.ndarray:
    mean = magnitudes.mean()
    return magnitudes / mean if mean else np.ones(magnitudes.shape)


def _share_of_largest(im: InstrumentedModel, name: str) -> np.ndarray:
    """Return |w| as a share of the kernel's largest |w|, from 0 to 1."""
    weights = np.abs(im.kernels[name].kernel().astype(np.float64))
    return weights / max(weights.max(), np.finfo(np.float64).tiny)
