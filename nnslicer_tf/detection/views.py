"""Views of an image that leave its class as it is: mirrored, shifted by one pixel, zoomed."""

from collections.abc import Callable, Iterator

import numpy as np

View = Callable[[np.ndarray], Iterator[np.ndarray]]
"""From images (N, height, width, channels) to such images, one kind of view at a time."""

_SHIFTS = ((0, 1), (1, 0), (-1, -1), (-1, 1))
_ZOOMS = (1.12, 0.9)


def _shifted(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the images `(N, height, width, channels)` moved by one pixel four ways.

    The edge is repeated.
    """
    height, width = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    for down, right in _SHIFTS:
        yield padded[:, 1 - down : 1 - down + height, 1 - right : 1 - right + width]


def _mirrored(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the images with left and right exchanged, moved by one pixel four ways."""
    return _shifted(np.ascontiguousarray(x[:, :, ::-1]))


def _zoomed(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the images enlarged and made smaller about their centre, the edge repeated."""
    for factor in _ZOOMS:
        yield _scaled(_scaled(x, factor, axis=1), factor, axis=2)


def _scaled(x: np.ndarray, factor: float, axis: int) -> np.ndarray:
    """Return x read at other places of an axis, between two values linearly."""
    last = x.shape[axis] - 1
    places = np.clip((np.arange(last + 1) - last / 2) / factor + last / 2, 0, last)
    below = np.minimum(places.astype(int), max(last - 1, 0))
    shape = [1] * x.ndim
    shape[axis] = -1
    weight = (places - below).astype(x.dtype).reshape(shape)
    above = np.minimum(below + 1, last)
    return x.take(below, axis) * (1 - weight) + x.take(above, axis) * weight


VIEWS: dict[str, View] = {"mirror": _mirrored, "shift": _shifted, "zoom": _zoomed}
"""The kinds of views by name."""
