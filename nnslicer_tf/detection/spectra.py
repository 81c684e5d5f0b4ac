"""Power by frequency: what noise adds to an image and blur takes from it.

Natural images have much the same spectrum; Harder et al. ("SpectralDefense", IJCNN 2021) find
attacks by it, with examples of them to learn from. Here only normal images are learned from.
"""

from collections.abc import Callable

import numpy as np
from scipy import fft

_RINGS = 13
_BLOCKS = 8
# Added to powers and amplitudes of values in [0, 1] before their logarithm is taken.
_SMALLEST_POWER = 1e-6
_SMALLEST_AMPLITUDE = 1e-4


def _ring_powers(x: np.ndarray) -> np.ndarray:
    """Return the logarithm of the mean power in rings of equal frequency.

    Args:
        x: `(N, height, width, channels)` images.

    Returns:
        `(N, 13 · channels)` float64, fewer for small images: rings without a frequency are
        left out.
    """
    planes = _planes(x)
    height, width = planes.shape[1:3]
    window = np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1])
    planes = (planes - planes.mean(axis=(1, 2), keepdims=True)) * window[:, :, None]
    power = np.abs(fft.rfft2(planes, axes=(1, 2))) ** 2
    frequency = np.hypot(*np.meshgrid(fft.fftfreq(height), fft.rfftfreq(width), indexing="ij"))
    # The last ring takes the corners, beyond half a period a pixel.
    ring = np.minimum((frequency * 2 * (_RINGS - 1)).astype(int), _RINGS - 1)
    means = [power[:, ring == r].mean(axis=1) for r in np.unique(ring)]
    return np.log(_SMALLEST_POWER + np.concatenate(means, axis=1))


def _block_amplitudes(x: np.ndarray) -> np.ndarray:
    """Return the mean logarithm of cosine amplitudes, by blocks of both frequencies.

    Args:
        x: `(N, height, width, channels)` images.

    Returns:
        `(N, 64 · channels)` float64, fewer for smaller images.
    """
    amplitudes = np.abs(fft.dctn(_planes(x), axes=(1, 2), norm="ortho"))
    values = np.log(_SMALLEST_AMPLITUDE + amplitudes)
    for axis in (1, 2):
        parts = np.array_split(values, min(_BLOCKS, values.shape[axis]), axis)
        values = np.concatenate([part.mean(axis, keepdims=True) for part in parts], axis)
    return values.reshape(len(x), -1)


def _planes(x: np.ndarray) -> np.ndarray:
    """Return lightness and the differences of neighbouring channels, as many as channels."""
    return np.concatenate([x.mean(axis=-1, keepdims=True), np.diff(x, axis=-1)], axis=-1)


SPECTRA: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rings": _ring_powers,
    "blocks": _block_amplitudes,
}
"""Features of the spectrum by name: images → (N, features) float64."""
