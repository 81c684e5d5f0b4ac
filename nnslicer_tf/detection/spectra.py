"""Power spectra, which reveal noise added to an image and detail lost by blur.

Natural images have similar spectra; Harder et al. ("SpectralDefense", IJCNN 2021) use them to
detect attacks, trained on adversarial examples. Here only normal images are used for training.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import fft

from nnslicer_tf._environment import LazyModule

ops: Any = LazyModule("keras.ops")

_RINGS = 13
_BLOCKS = 8
# Added to powers and amplitudes of values in [0, 1] before taking the logarithm.
_SMALLEST_POWER = 1e-6
_SMALLEST_AMPLITUDE = 1e-4


def _ring_powers(x: np.ndarray) -> np.ndarray:
    """Return the logarithm of the mean power in rings of equal frequency.

    Args:
        x: `(N, height, width, channels)` images.

    Returns:
        `(N, 13 · channels)` float64, fewer for small images: empty rings are omitted.
    """
    planes = _planes(x)
    height, width = planes.shape[1:3]
    window = np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1])
    planes = (planes - planes.mean(axis=(1, 2), keepdims=True)) * window[:, :, None]
    power = np.abs(fft.rfft2(planes, axes=(1, 2))) ** 2
    ring = _rings(height, width)
    means = [power[:, ring == r].mean(axis=1) for r in np.unique(ring)]
    return np.log(_SMALLEST_POWER + np.concatenate(means, axis=1))


def _rings(height: int, width: int) -> np.ndarray:
    """Return the ring of each frequency, (height, width // 2 + 1) int."""
    frequency = np.hypot(*np.meshgrid(fft.fftfreq(height), fft.rfftfreq(width), indexing="ij"))
    # The last ring includes the corners, beyond half a period per pixel.
    return np.minimum((frequency * 2 * (_RINGS - 1)).astype(int), _RINGS - 1)


def _block_amplitudes(x: np.ndarray) -> np.ndarray:
    """Return the mean logarithm of cosine amplitudes in blocks of both frequencies.

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
    """Return lightness and the differences of neighbouring channels, one plane per channel."""
    return np.concatenate([x.mean(axis=-1, keepdims=True), np.diff(x, axis=-1)], axis=-1)


def _smooth_ring_powers(x: Any) -> Any:
    """Return `_ring_powers` of a tensor, `(N, features)` float32, by matrix products."""
    planes = _smooth_planes(x)
    height, width = planes.shape[1:3]
    window = np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1])
    planes = planes - ops.mean(planes, axis=(1, 2), keepdims=True)
    planes = planes * window[:, :, None].astype(np.float32)
    rows, columns = fft.fft(np.eye(height)), fft.rfft(np.eye(width))
    # (a + bi)(c + di) of the two transforms, on real images.
    real, imaginary = (
        _transform(planes, rows.real, columns.real) - _transform(planes, rows.imag, columns.imag),
        _transform(planes, rows.real, columns.imag) + _transform(planes, rows.imag, columns.real),
    )
    power = ops.square(real) + ops.square(imaginary)
    ring = _rings(height, width)
    means = [
        ops.sum(power * (ring == r)[:, :, None].astype(np.float32), axis=(1, 2)) / (ring == r).sum()
        for r in np.unique(ring)
    ]
    return ops.log(_SMALLEST_POWER + ops.concatenate(means, axis=1))


def _smooth_block_amplitudes(x: Any) -> Any:
    """Return `_block_amplitudes` of a tensor, `(N, features)` float32."""
    planes = _smooth_planes(x)
    shape = planes.shape[1:3]
    rows, columns = (fft.dct(np.eye(size), norm="ortho", axis=0).T for size in shape)
    values = ops.log(_SMALLEST_AMPLITUDE + ops.abs(_transform(planes, rows, columns)))
    of_rows, of_columns = (_block_means(size) for size in shape)
    return ops.reshape(_transform(values, of_rows, of_columns), (-1, _block_features(planes)))


def _block_features(planes: Any) -> int:
    height, width, channels = planes.shape[1:]
    return min(_BLOCKS, height) * min(_BLOCKS, width) * channels


def _block_means(size: int) -> np.ndarray:
    """Return the matrix (size, blocks) that takes means of consecutive entries."""
    parts = np.array_split(np.arange(size), min(_BLOCKS, size))
    return np.stack([np.isin(np.arange(size), part) / len(part) for part in parts], axis=1)


def _transform(planes: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    """Return planes (N, height, width, channels) times matrices, along both axes."""
    of_rows, of_columns = rows.astype(np.float32), columns.astype(np.float32)
    return ops.einsum("nhwc,hi,wj->nijc", planes, of_rows, of_columns)


def _smooth_planes(x: Any) -> Any:
    """Return `_planes` of a tensor."""
    return ops.concatenate([ops.mean(x, axis=-1, keepdims=True), x[..., 1:] - x[..., :-1]], axis=-1)


SPECTRA: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rings": _ring_powers,
    "blocks": _block_amplitudes,
}
"""Features of the spectrum by name: images → (N, features) float64."""

SMOOTH_SPECTRA: dict[str, Callable[[Any], Any]] = {
    "rings": _smooth_ring_powers,
    "blocks": _smooth_block_amplitudes,
}
"""The same on tensors of the backend, differentiable."""
