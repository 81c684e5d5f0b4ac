"""`Problem`, the input of every adaptive attack, and `Tried`, its result."""

from dataclasses import dataclass, replace

import numpy as np

from nnslicer_tf.detection.adaptive.norms import Norm
from nnslicer_tf.detection.adaptive.pair import Pair
from nnslicer_tf.detection.adaptive.surrogate import Surrogate


@dataclass(frozen=True)
class Effort:
    """The numbers of steps and queries of the attacks.

    Attributes:
        steps: Gradient steps of a white-box attack.
        queries: Inputs that a black-box attack submits to the pair, per image.
        rounds: Weights that the weighted sum tries, and rounds of `minimum` and `approach`.
    """

    steps: int = 60
    queries: int = 400
    rounds: int = 4


@dataclass(frozen=True, eq=False)
class Tried:
    """The result of an attack.

    Attributes:
        x: (N, *input_shape) float32: the successes, or the last attempts.
        found: (N,) bool: the model is wrong and the detector silent.
    """

    x: np.ndarray
    found: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class Setting:
    """The images, the target and the attacker's means, independent of norm and budget.

    Attributes:
        pair: The target, which decides on success.
        surrogate: Provides gradients.
        substitute: Pair and surrogate of another detector, for transfer; None if there is none.
        x: (N, *input_shape) float32.
        y: (N,) true classes.
        guides: (N, *input_shape) normal inputs, each of another class than its image, on which
            the detector is silent.
        bounds: Least and largest value of an input.
        scales: Spread of the margins and of the scores over the images.
        effort: Numbers of steps and queries.
        seed: Seed of all random choices.
    """

    pair: Pair
    surrogate: Surrogate
    substitute: tuple[Pair, Surrogate] | None
    x: np.ndarray
    y: np.ndarray
    guides: np.ndarray
    bounds: tuple[float, float]
    scales: tuple[float, float]
    effort: Effort
    seed: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem(Setting):
    """Images to change within a budget, until the model is wrong and the detector silent.

    Attributes:
        norm: Measures changes.
        budget: The largest change allowed.
        step: The reference for step sizes: the budget, or for an unlimited budget the largest
            limited one.
        rng: The source of randomness.
    """

    norm: Norm
    budget: float
    step: float
    rng: np.random.Generator

    def rows(self, index: np.ndarray) -> "Problem":
        """Return the problem restricted to some of the images."""
        return replace(self, x=self.x[index], y=self.y[index], guides=self.guides[index])

    def within(self, moved: np.ndarray, index: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Project `moved` onto the inputs that the budget and the bounds allow."""
        x = self.x[index]
        return np.clip(x + self.norm.project(moved - x, self.budget), *self.bounds)
