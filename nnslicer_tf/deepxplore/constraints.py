"""Constraints on changes of an input: light, occlusion, blackout, or a custom projection.

A constraint turns a gradient into a direction of change (Pei et al., SOSP 2017, section 6.2), and
projects changed inputs to valid ones. To add one, subclass `Constraint`, or pass a projection.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from nnslicer_tf._checks import check_count, is_int, of_user
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError, NonFiniteActivationError

ProjectionFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Constraint:
    """Allows any change; the base class of the other constraints.

    `step` is the default change in one iteration, as a root mean square, for inputs within 0 … 1.
    """

    step: ClassVar[float] = 0.05

    def begin(self, shape: tuple[int, ...], count: int, rng: Generator) -> np.ndarray:
        """Return the state of new seeds, `(count, …)`; reject inputs of an unsuitable `shape`."""
        return np.zeros((count, 0))

    def direction(self, gradient: np.ndarray, state: np.ndarray, rng: Generator) -> np.ndarray:
        """Return the directions of change, of any length, for a gradient `(batch, *shape)`."""
        return gradient

    def project(self, x: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Return valid inputs near the changed ones `(batch, *shape)`; bounds are clipped later."""
        return x


class Light(Constraint):
    """Changed lighting: all values of an input change by the same amount."""

    def direction(self, gradient: np.ndarray, state: np.ndarray, rng: Generator) -> np.ndarray:
        """Return ones, with the sign of the mean gradient."""
        axes = tuple(range(1, gradient.ndim))
        return np.broadcast_to(np.sign(gradient.mean(axis=axes, keepdims=True)), gradient.shape)


@dataclass(frozen=True)
class _Rectangular(Constraint):
    """Changes rectangles of `size` (height, width) in pixels."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        size = self.size
        if not isinstance(size, Sequence) or len(size) != 2 or not all(map(is_int, size)):
            raise InvalidArgumentError(f"size must be (height, width) pixels. Received: {size!r}")
        for pixels in size:
            check_count("size", pixels)


@dataclass(frozen=True)
class Occlusion(_Rectangular):
    """Changes a rectangle of `size` (height, width) in pixels, at a place drawn once per seed."""

    step: ClassVar[float] = 0.3
    size: tuple[int, int] = (10, 10)

    def begin(self, shape: tuple[int, ...], count: int, rng: Generator) -> np.ndarray:
        """Return the top left corners of the rectangles, `(count, 2)`."""
        return _corners(shape, self.size, count, rng)

    def direction(self, gradient: np.ndarray, state: np.ndarray, rng: Generator) -> np.ndarray:
        """Return the gradient inside the rectangles, zero elsewhere."""
        return gradient * _rectangles(gradient.shape, state, self.size)


@dataclass(frozen=True)
class Blackout(_Rectangular):
    """Dirt on the lens: patches of `size` (height, width), one per iteration, get darker."""

    step: ClassVar[float] = 1.0  # a patch is black at once
    size: tuple[int, int] = (6, 6)

    def begin(self, shape: tuple[int, ...], count: int, rng: Generator) -> np.ndarray:
        """Return an empty state."""
        _corners(shape, self.size, 0, rng)  # rejects small images
        return super().begin(shape, count, rng)

    def direction(self, gradient: np.ndarray, state: np.ndarray, rng: Generator) -> np.ndarray:
        """Return -1 in the patches whose mean gradient is negative, zero elsewhere."""
        corners = _corners(gradient.shape[1:], self.size, len(gradient), rng)
        patch = _rectangles(gradient.shape, corners, self.size)
        darker = (gradient * patch).sum(axis=(1, 2, 3), keepdims=True) < 0
        return np.broadcast_to(-(patch & darker).astype(np.float32), gradient.shape)


@dataclass(frozen=True)
class Projection(Constraint):
    """Any change, projected to valid inputs by a function `(x, seeds) -> x`."""

    function: ProjectionFunction

    def project(self, x: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Return the function's result, which must keep the shape."""
        with of_user("constraint"):
            projected = np.asarray(self.function(x.copy(), seeds.copy()), np.float32)
        if projected.shape != x.shape:
            raise InputShapeError(
                f"The constraint must return inputs of shape {x.shape}, not {projected.shape}."
            )
        if not np.isfinite(projected).all():
            raise NonFiniteActivationError("The constraint's function returned NaN or infinity.")
        return projected


CONSTRAINTS = {"light": Light(), "occlusion": Occlusion(), "blackout": Blackout()}
"""The constraints by name."""


def find_constraint(constraint: str | Constraint | ProjectionFunction) -> Constraint:
    """Return a constraint by name, and a function as a `Projection`."""
    if isinstance(constraint, str) and constraint in CONSTRAINTS:
        return CONSTRAINTS[constraint]
    if isinstance(constraint, Constraint):
        return constraint
    if callable(constraint):
        return Projection(constraint)
    raise InvalidArgumentError(
        f"constraint must be one of {', '.join(CONSTRAINTS)}, a Constraint, or a function "
        f"(x, seeds) -> x. Received: {constraint!r}"
    )


def _corners(
    shape: tuple[int, ...], size: tuple[int, int], count: int, rng: Generator
) -> np.ndarray:
    """Draw the top left corners `(count, 2)` of rectangles inside an image."""
    if len(shape) != 3 or size[0] > shape[0] or size[1] > shape[1]:
        raise InputShapeError(
            f"Rectangles of {size[0]}×{size[1]} pixels need larger images (height, width, "
            f"channels). Received inputs of shape {shape}."
        )
    return rng.integers(0, (shape[0] - size[0] + 1, shape[1] - size[1] + 1), (count, 2))


def _rectangles(shape: tuple[int, ...], corners: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a mask `(batch, height, width, 1)`, true inside the rectangles."""
    rows, columns = np.arange(shape[1]), np.arange(shape[2])
    top, left = corners[:, :1], corners[:, 1:]
    vertical = (rows >= top) & (rows < top + size[0])
    horizontal = (columns >= left) & (columns < left + size[1])
    return (vertical[:, :, None] & horizontal[:, None, :])[..., None]
