"""Views of an image that preserve its class: mirrored, shifted by one pixel, zoomed.

They accept arrays, and tensors of the backend (differentiable).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule

ops: Any = LazyModule("keras.ops")

View = Callable[[Any], Iterator[Any]]
"""Yields the views of a kind of images (N, height, width, channels), in the same shape."""

_SHIFTS = ((0, 1), (1, 0), (-1, -1), (-1, 1))
_ZOOMS = (1.12, 0.9)


def _shifted(x: Any) -> Iterator[Any]:
    """Yield the images `(N, height, width, channels)` shifted by one pixel in each direction.

    The edge is repeated.
    """
    for down, right in _SHIFTS:
        yield _moved(_moved(x, down, axis=1), right, axis=2)


def _mirrored(x: Any) -> Iterator[Any]:
    """Yield the images flipped left to right and shifted by one pixel in each direction."""
    return _shifted(_take(x, np.arange(x.shape[2])[::-1], axis=2))


def _zoomed(x: Any) -> Iterator[Any]:
    """Yield the images enlarged and shrunk about their centre, the edge repeated."""
    for factor in _ZOOMS:
        yield _scaled(_scaled(x, factor, axis=1), factor, axis=2)


def _moved(x: Any, by: int, axis: int) -> Any:
    """Return x shifted along an axis by some pixels, the edge repeated."""
    last = x.shape[axis] - 1
    return _take(x, np.clip(np.arange(last + 1) - by, 0, last), axis)


def _scaled(x: Any, factor: float, axis: int) -> Any:
    """Return x rescaled along an axis, with linear interpolation."""
    last = x.shape[axis] - 1
    places = np.clip((np.arange(last + 1) - last / 2) / factor + last / 2, 0, last)
    below = np.minimum(places.astype(int), max(last - 1, 0))
    shape = [1] * len(x.shape)
    shape[axis] = -1
    dtype = x.dtype if isinstance(x, np.ndarray) else np.float32
    weight = (places - below).astype(dtype).reshape(shape)
    above = np.minimum(below + 1, last)
    return _take(x, below, axis) * (1 - weight) + _take(x, above, axis) * weight


def _take(x: Any, places: np.ndarray, axis: int) -> Any:
    """Return the entries of an array or a tensor at some indices of an axis."""
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x.take(places, axis))
    return ops.take(x, places, axis=axis)


VIEWS: dict[str, View] = {"mirror": _mirrored, "shift": _shifted, "zoom": _zoomed}
"""The kinds of views by name."""
