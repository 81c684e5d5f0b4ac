"""Views of an image that leave its class as it is: flipped, and shifted by one pixel."""

from collections.abc import Callable, Iterator

import numpy as np

__all__ = ["VIEWS", "View"]

View = Callable[[np.ndarray], Iterator[np.ndarray]]

_SHIFTS = ((0, 1), (1, 0), (-1, -1), (-1, 1))


def flipped(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the images `(N, height, width, channels)` with left and right exchanged."""
    yield np.ascontiguousarray(x[:, :, ::-1])


def shifted(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the images moved by one pixel four ways; the edge is repeated."""
    height, width = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    for down, right in _SHIFTS:
        yield padded[:, 1 - down : 1 - down + height, 1 - right : 1 - right + width]


VIEWS: dict[str, View] = {"flip": flipped, "shift": shifted}
