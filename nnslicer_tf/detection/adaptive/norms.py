"""The norms that bound an attacker, L∞ and L2, with the operations that attacks need."""

from abc import ABC, abstractmethod

import numpy as np

_TINY = 1e-12


class Norm(ABC):
    """A norm on changes of inputs, `(N, *input_shape)`."""

    name: str

    @abstractmethod
    def distance(self, delta: np.ndarray) -> np.ndarray:
        """Return the size of changes, (N,) float64."""

    @abstractmethod
    def project(self, delta: np.ndarray, budget: float | np.ndarray) -> np.ndarray:
        """Project changes onto the ball of size `budget`, one number or (N,)."""

    @abstractmethod
    def unit(self, gradient: np.ndarray) -> np.ndarray:
        """Return the changes of size 1 that most increase a function with this gradient."""

    @abstractmethod
    def largest(self, shape: tuple[int, ...], span: float) -> float:
        """Return the largest possible change of inputs of a shape whose values lie in a span."""


class _Linf(Norm):
    name = "linf"

    def distance(self, delta: np.ndarray) -> np.ndarray:
        return np.abs(_flat(delta)).max(axis=1).astype(np.float64)

    def project(self, delta: np.ndarray, budget: float | np.ndarray) -> np.ndarray:
        bound = column(budget, delta)
        return np.clip(delta, -bound, bound)

    def unit(self, gradient: np.ndarray) -> np.ndarray:
        return np.sign(gradient)

    def largest(self, shape: tuple[int, ...], span: float) -> float:
        return float(span)


class _L2(Norm):
    name = "l2"

    def distance(self, delta: np.ndarray) -> np.ndarray:
        return np.linalg.norm(_flat(delta).astype(np.float64), axis=1)

    def project(self, delta: np.ndarray, budget: float | np.ndarray) -> np.ndarray:
        size = column(np.maximum(self.distance(delta), _TINY), delta)
        return delta * np.minimum(1.0, column(budget, delta) / size)

    def unit(self, gradient: np.ndarray) -> np.ndarray:
        size = self.distance(gradient)
        factor = np.where(size > _TINY, 1 / np.maximum(size, _TINY), 0.0)
        return gradient * column(factor, gradient)

    def largest(self, shape: tuple[int, ...], span: float) -> float:
        return float(span * np.sqrt(np.prod(shape)))


NORMS: dict[str, Norm] = {"linf": _Linf(), "l2": _L2()}
"""The norms by name."""


def _flat(delta: np.ndarray) -> np.ndarray:
    return delta.reshape(len(delta), -1)


def column(values: float | np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return one value per sample, or one for all, shaped to broadcast against `like`."""
    values = np.asarray(values)
    shaped = values.reshape(-1, *[1] * (like.ndim - 1))
    return shaped if values.dtype == bool else shaped.astype(like.dtype)
