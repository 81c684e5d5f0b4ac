"""Differentiable features of images that need no model: views, spectra and residuals.

All take images (N, height, width, channels), arrays or tensors. Views preserve the class. Spectra
reveal added noise and blur (Harder et al., "SpectralDefense", IJCNN 2021). Residuals are noise that
neighbouring pixels do not predict (Pevný et al., IEEE TIFS 2010; Liu et al., CVPR 2019).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import fft

from nnslicer_tf._environment import ops
from nnslicer_tf._numerics import runner_up_margin

VIEWS = ("mirror", "shift", "zoom")  # The kinds of views
SPECTRA = ("rings", "blocks")  # How frequencies are grouped in spectra

_SHIFTS = ((0, 1), (1, 0), (-1, -1), (-1, 1))
_ZOOMS = (1.12, 0.9)
_RINGS = 13
_BLOCKS = 8
# Added to powers and amplitudes of values in [0, 1], and to shares, before taking the logarithm.
_MIN_POWER = 1e-6
_MIN_AMPLITUDE = 1e-4
_MIN_SHARE = 1e-3
# Magnitudes, in grey levels of 255, with which residuals are compared.
_SIZES = (1, 2, 4, 8, 16)


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


def views(x: Any, kind: str) -> Iterator[Any]:
    """Yield the views of a kind, in the images' shape, with repeated edges.

    "shift": by one pixel in four directions. "mirror": flipped left to right, then shifted. "zoom":
    enlarged and shrunk about the centre, interpolated linearly.
    """
    xp = array_module(x)
    if kind == "mirror":
        x = xp.take(x, np.arange(x.shape[2])[::-1], axis=2)
    for shifts in _SHIFTS if kind != "zoom" else ():
        view = x
        for axis, by in zip((1, 2), shifts, strict=True):
            last = x.shape[axis] - 1
            view = xp.take(view, np.clip(np.arange(last + 1) - by, 0, last), axis)
        yield view
    for factor in _ZOOMS if kind == "zoom" else ():
        view = x
        for axis in (1, 2):
            last = x.shape[axis] - 1
            places = np.clip((np.arange(last + 1) - last / 2) / factor + last / 2, 0, last)
            below = np.minimum(places.astype(int), max(last - 1, 0))
            shape = [1] * len(x.shape)
            shape[axis] = -1
            dtype = x.dtype if isinstance(x, np.ndarray) else np.float32
            weight = (places - below).astype(dtype).reshape(shape)
            above = xp.take(view, np.minimum(below + 1, last), axis)
            view = xp.take(view, below, axis) * (1 - weight) + above * weight
        yield view


def spectrum(x: Any, grouping: str) -> Any:
    """Return log power spectra of the lightness and of differences of neighbouring channels.

    "rings": the mean power in rings of equal frequency, (N, 13 · channels), fewer for small images.
    "blocks": the mean log amplitude of the cosine transform in blocks of frequencies, (N, 64 ·
    channels).
    """
    xp, (height, width) = array_module(x), x.shape[1:3]
    parts = [xp.mean(x, axis=-1, keepdims=True), xp.diff(x, axis=-1)]
    planes = xp.moveaxis(xp.concatenate(parts, axis=-1), -1, 1)  # (N, planes, height, width)
    if grouping == "blocks":
        rows, columns = (fft.dct(np.eye(size), norm="ortho", axis=0) for size in (height, width))
        amplitudes = xp.abs(_transform(planes, rows, columns.T))
        # Matrices that take means of consecutive frequencies.
        means = []
        for size in (height, width):
            blocks = np.array_split(np.arange(size), min(_BLOCKS, size))
            means.append([np.isin(np.arange(size), block) / len(block) for block in blocks])
        over_rows, over_columns = map(np.array, means)
        values = _transform(xp.log(_MIN_AMPLITUDE + amplitudes), over_rows, over_columns.T)
    else:
        window = np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1])
        planes = (planes - xp.mean(planes, axis=(2, 3), keepdims=True)) * operand(window, x)
        rows, columns = fft.fft(np.eye(height)), fft.rfft(np.eye(width))
        # (a + bi)(c + di) of the two transforms, on real images.
        a, b, c, d = rows.real, rows.imag, columns.real, columns.imag
        real = _transform(planes, a, c) - _transform(planes, b, d)
        power = xp.square(real) + xp.square(_transform(planes, a, d) + _transform(planes, b, c))
        frequency = np.hypot(*np.meshgrid(fft.fftfreq(height), fft.rfftfreq(width), indexing="ij"))
        # The last ring includes the corners, beyond half a period per pixel.
        ring = np.minimum((frequency * 2 * (_RINGS - 1)).astype(int), _RINGS - 1).ravel()
        members = ring[:, None] == np.unique(ring)
        power = xp.reshape(power, (-1, planes.shape[1], len(ring)))
        values = xp.matmul(power, operand(members / members.sum(axis=0), x))
        values = xp.log(_MIN_POWER + values)
    values = xp.moveaxis(values, 1, -1)
    return xp.reshape(values, (-1, int(np.prod(values.shape[1:]))))


def _transform(planes: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    """Return rows · plane · columns for each plane of (N, planes, height, width)."""
    xp = array_module(planes)
    return xp.matmul(xp.matmul(operand(rows, planes), planes), operand(columns, planes))


def residual_shares(x: Any) -> Any:
    """Return the log share of small residuals, (N, features) float32; x has values in [0, 1].

    Residuals are second differences along rows, columns and both, and the fourth difference along
    both (Ker and Böhme's predictor), of the channels and of first and second differences across
    channels. A share is the mean of exp(-(residual / size)² / 2). Three channels have 120 features.
    """
    xp = array_module(x)
    channels = [x]
    while len(channels) < 3 and channels[-1].shape[-1] > 1:
        channels.append(xp.diff(channels[-1], axis=3))
    planes = xp.concatenate(channels, axis=-1)
    down, across = (xp.diff(planes, n=2, axis=axis) for axis in (1, 2))
    both = xp.diff(xp.diff(planes, axis=1), axis=2)
    fourth = xp.diff(down, n=2, axis=2) / 2
    shares = []
    for residual in (down, across, both, fourth):
        for size in _SIZES:
            close = xp.exp(xp.square(residual * np.float32(255 / size)) * np.float32(-0.5))
            shares.append(xp.log(xp.mean(close, axis=(1, 2)) + np.float32(_MIN_SHARE)))
    return xp.concatenate(shares, axis=1)
