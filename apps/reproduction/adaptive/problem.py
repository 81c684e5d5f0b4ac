"""`Problem`, the input of every adaptive attack, and `Tried`, its result."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from reproduction.adaptive.pair import Pair

_TINY = 1e-12


@dataclass(frozen=True)
class Norm:
    """The norm of changes of inputs, (N, *input_shape); name: "linf" or "l2"."""

    name: str

    def distance(self, delta: np.ndarray) -> np.ndarray:
        """Return the size of changes, (N,) float64."""
        flat = delta.reshape(len(delta), -1)
        if self.name == "linf":
            return np.abs(flat).max(axis=1).astype(np.float64)
        return np.linalg.norm(flat.astype(np.float64), axis=1)

    def project(self, delta: np.ndarray, budget: float | np.ndarray) -> np.ndarray:
        """Project changes onto the ball of size `budget`, one number or (N,)."""
        bound = column(budget, delta)
        if self.name == "linf":
            return np.clip(delta, -bound, bound)
        size = column(np.maximum(self.distance(delta), _TINY), delta)
        return delta * np.minimum(1.0, bound / size)

    def unit(self, gradient: np.ndarray) -> np.ndarray:
        """Return the changes of size 1 that most increase a function with this gradient."""
        if self.name == "linf":
            return np.sign(gradient)
        size = self.distance(gradient)
        factor = np.where(size > _TINY, 1 / np.maximum(size, _TINY), 0.0)
        return gradient * column(factor, gradient)

    def spread(self, shape: tuple[int, ...]) -> float:
        """Return the norm of an input of a shape whose elements are all 1."""
        return 1.0 if self.name == "linf" else float(np.sqrt(np.prod(shape)))


NORMS = {"linf": Norm("linf"), "l2": Norm("l2")}  # The norms by name


def column(values: float | np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return one value per sample, or one for all, shaped to broadcast against `like`."""
    values = np.asarray(values)
    shaped = values.reshape(-1, *[1] * (like.ndim - 1))
    return shaped if values.dtype == bool else shaped.astype(like.dtype)


class Effort(NamedTuple):
    """Numbers of steps and queries of the attacks; see `challenge`."""

    steps: int
    queries: int
    rounds: int


class Tried(NamedTuple):
    """The result of an attack: successes or last attempts, and which are successes, (N,) bool."""

    x: np.ndarray
    found: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """Images to change within a budget, until the model is wrong and the detector silent."""

    pair: Pair
    substitute: Pair | None  # with another detector, for transfer; None if there is none
    x: np.ndarray  # (N, *input_shape) float32
    y: np.ndarray  # (N,) true classes
    guides: np.ndarray  # (N, *input_shape) unflagged normal inputs of other classes than x's
    bounds: tuple[float, float]  # least and largest value of an input
    scales: tuple[float, float]  # spread of the margins and of the scores over the images
    effort: Effort
    seed: int
    norm: Norm = NORMS["linf"]
    budget: float = np.inf  # the largest change allowed
    step: float = np.inf  # reference for step sizes: the budget, or the largest finite one
    rng: np.random.Generator = None  # type: ignore[assignment]  # set for every attack

    def rows(self, index: np.ndarray) -> "Problem":
        """Return the problem restricted to some of the images."""
        return replace(self, x=self.x[index], y=self.y[index], guides=self.guides[index])

    def within(self, moved: np.ndarray, index: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Project `moved` onto the inputs that the budget and the bounds allow."""
        x = self.x[index]
        return np.clip(x + self.norm.project(moved - x, self.budget), *self.bounds)

    @property
    def step_per_element(self) -> float:
        """The reference step as a root mean square over the elements of an input."""
        return self.step / self.norm.spread(self.x.shape[1:])


class Nearest:
    """The successes nearest to their images so far; elsewhere the initial `x`, at infinite size."""

    def __init__(self, problem: Problem, x: np.ndarray) -> None:
        self._problem = problem
        self.x, self.sizes = x.copy(), np.full(len(x), np.inf)

    @property
    def found(self) -> np.ndarray:
        """Whether there is a success, (N,) bool."""
        return np.isfinite(self.sizes)

    def take(self, tried: Tried) -> None:
        """Record successes that are nearer to their images."""
        sizes = self._problem.norm.distance(tried.x - self._problem.x)
        closer = tried.found & (sizes < self.sizes)
        self.x[closer], self.sizes[closer] = tried.x[closer], sizes[closer]


def nearer(problem: Problem, x: np.ndarray, found: np.ndarray, times: int) -> np.ndarray:
    """Move successes towards their images by bisection; they remain successes."""
    x, rows = x.copy(), np.flatnonzero(found)
    if not len(rows):
        return x
    low, high = np.zeros(len(rows)), np.ones(len(rows))
    origin = problem.x[rows]
    delta = x[rows] - origin
    size = problem.norm.distance(delta)
    for _ in range(times):
        middle = (low + high) / 2
        moved = origin + problem.norm.project(delta, middle * size)
        good = problem.pair.succeeds(moved, problem.y[rows])
        x[rows[good]] = moved[good]
        low, high = np.where(good, low, middle), np.where(good, middle, high)
    return x
