"""Residuals of images: the noise that neighbouring pixels do not predict, by magnitude.

Steganalysis finds changes of single grey levels in such residuals (Pevný et al., "Steganalysis by
subtractive pixel adjacency matrix", IEEE TIFS 2010; for attacks, with adversarial examples for
training, Liu et al., "Detection based defense against adversarial examples from the steganalysis
point of view", CVPR 2019). Here only normal images are used for training. Cost: 24 images of
residuals, each compared with five magnitudes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule

ops: Any = LazyModule("keras.ops")

# Magnitudes, in grey levels of 255, with which residuals are compared.
_SIZES = (1, 2, 4, 8, 16)
# Added to shares before taking the logarithm.
_SMALLEST_SHARE = 1e-3


def residual_shares(x: Any) -> Any:
    """Return the share of small residuals, for several magnitudes, residuals and channels.

    Residuals are second differences along rows, columns and both, and the fourth difference along
    both (Ker and Böhme's predictor), of the channels, of the differences of neighbouring channels,
    and of the differences of those. A share is the mean of exp(-(residual / size)² / 2).

    Args:
        x: `(N, height, width, channels)` images with values in [0, 1], an array or a tensor of the
            backend (differentiable).

    Returns:
        `(N, features)` float32, the logarithms of the shares; 120 features for three channels.
    """
    shares = [_share(residual, size) for residual in _residuals(_planes(x)) for size in _SIZES]
    return _module(x).concatenate(shares, axis=1)


def _share(residual: Any, size: int) -> Any:
    of = _module(residual)
    close = of.exp(of.square(residual * np.float32(255 / size)) * np.float32(-0.5))
    return of.log(of.mean(close, axis=(1, 2)) + np.float32(_SMALLEST_SHARE))


def _planes(x: Any) -> Any:
    """Return the channels, their differences, and the differences of those, as channels."""
    differences = [x]
    while len(differences) < 3 and differences[-1].shape[-1] > 1:
        differences.append(_difference(differences[-1], axis=3))
    return _module(x).concatenate(differences, axis=-1)


def _residuals(planes: Any) -> Iterator[Any]:
    down, across = (_difference(_difference(planes, axis), axis) for axis in (1, 2))
    yield down
    yield across
    yield _difference(_difference(planes, axis=1), axis=2)
    yield _difference(_difference(down, axis=2), axis=2) / 2


def _difference(x: Any, axis: int) -> Any:
    """Return the differences of neighbours along an axis."""
    before, after = [slice(None)] * 4, [slice(None)] * 4
    before[axis], after[axis] = slice(None, -1), slice(1, None)
    return x[tuple(after)] - x[tuple(before)]


def _module(x: Any) -> Any:
    """Return the module whose functions take x."""
    return np if isinstance(x, np.ndarray) else ops
