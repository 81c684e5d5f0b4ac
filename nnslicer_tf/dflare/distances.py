"""Distances between a seed and its mutant."""

import numpy as np
from scipy.ndimage import gaussian_filter

# From Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment", IEEE TIP 2004: a Gaussian
# window of 11×11 pixels, and the constants that keep the quotient stable.
_SIGMA = 1.5
_RADIUS = 5
_K1, _K2 = 0.01, 0.03


def largest_change(a: np.ndarray, b: np.ndarray) -> float:
    """Return L∞, the largest change of a value."""
    return float(np.abs(_difference(a, b)).max())


def euclidean(a: np.ndarray, b: np.ndarray) -> float:
    """Return L2, the root of the sum of the squared changes."""
    return float(np.sqrt((_difference(a, b) ** 2).sum()))


def structural_similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Return the SSIM of two images `(height, width, channels)` of values 0 … 255: 1 if equal.

    It is the mean over pixels and channels, with the Gaussian window of Wang et al. (2004); NaN
    for inputs that are not images, and for images smaller than the window.
    """
    if np.ndim(a) != 3 or min(np.shape(a)[:2]) < 2 * _RADIUS + 1:
        return float("nan")
    x, y = (np.asarray(image, np.float64) for image in (a, b))
    mean_x, mean_y = _blurred(x), _blurred(y)
    var_x, var_y = _blurred(x * x) - mean_x**2, _blurred(y * y) - mean_y**2
    covariance = _blurred(x * y) - mean_x * mean_y
    c1, c2 = (_K1 * 255) ** 2, (_K2 * 255) ** 2
    upper = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    lower = (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    inner = slice(_RADIUS, -_RADIUS)
    return float((upper / lower)[inner, inner].mean())


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a, np.float64) - np.asarray(b, np.float64)


def _blurred(image: np.ndarray) -> np.ndarray:
    return gaussian_filter(image, (_SIGMA, _SIGMA, 0), radius=(_RADIUS, _RADIUS, 0))
