"""Fitness: which mutants replace the best input so far (paper, section 3.3).

A fitness decides about every mutant that does not deviate. It remembers the pairs of
probability vectors of one search; `start` returns an empty copy for the next.

The paper's H = D / δ + O compares the difference D of the top-1 probabilities first; if
two D lie within δ, the one whose pair of probability vectors is new wins. By the time of a
comparison the best input so far has been observed, so its own O counts 0 and a mutant is
accepted if D(mutant) / δ + O(mutant) ≥ D(best) / δ.

Cost: one comparison with all pairs observed so far, a few microseconds up to 1,000 of them.
"""

from abc import ABC, abstractmethod

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError


class ObservedStates:
    """The pairs of probability vectors that one search has seen.

    Args:
        radius: A pair is new if its nearest neighbour lies farther than this (L2 over both
            vectors together).
    """

    def __init__(self, radius: float) -> None:
        self._squared_radius = radius**2
        self._states = np.empty((0, 0), np.float32)
        self._count = 0

    def add(self, state: np.ndarray) -> bool:
        """Remember the pair `(2 × classes,) float32`; return whether it was new."""
        new = self._is_new(state)
        if new:  # a pair near another one cannot affect later decisions
            self._append(state)
        return new

    def _is_new(self, state: np.ndarray) -> bool:
        if not self._count:
            return True
        difference = self._states[: self._count] - state
        nearest = np.einsum("ij,ij->i", difference, difference).min()
        return bool(nearest > self._squared_radius)

    def _append(self, state: np.ndarray) -> None:
        if self._count == len(self._states):
            grown = np.empty((max(16, 2 * self._count), len(state)), np.float32)
            if self._count:
                grown[: self._count] = self._states
            self._states = grown
        self._states[self._count] = state
        self._count += 1


class Fitness(ABC):
    """Decides which mutants are accepted."""

    @abstractmethod
    def start(self) -> "Fitness":
        """Return a copy with an empty memory, for one search."""

    @abstractmethod
    def observe(self, state: np.ndarray) -> bool:
        """Remember the pair of probability vectors; return O, whether it was new."""

    @abstractmethod
    def accepts(self, distance: float, best: float, new: bool) -> bool:
        """Return whether the mutant replaces the best input.

        Args:
            distance: D of the mutant.
            best: D of the best input so far.
            new: O of the mutant.
        """


class NoveltyFitness(Fitness):
    """The paper's fitness, H = D / δ + O; a mutant is accepted if it does not decrease.

    Args:
        delta: δ, the difference in D below which O decides.
        radius: How far a pair of probability vectors must be from all others to be new.

    Raises:
        InvalidArgumentError: if δ is not above 0 or the radius is negative.
    """

    def __init__(self, delta: float = 1e-3, radius: float = 0.1) -> None:
        if not delta > 0 or not radius >= 0:
            raise InvalidArgumentError(
                f"delta must be above 0 and radius at least 0. Received: {delta}, {radius}"
            )
        self.delta = delta
        self.radius = radius
        self._observed = ObservedStates(radius)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(delta={self.delta}, radius={self.radius})"

    def start(self) -> "NoveltyFitness":
        """Return a copy that has observed nothing."""
        return type(self)(self.delta, self.radius)

    def observe(self, state: np.ndarray) -> bool:
        """Remember the pair; return whether it was new."""
        return self._observed.add(state)

    def accepts(self, distance: float, best: float, new: bool) -> bool:
        """Return whether H(mutant) ≥ H(best)."""
        return distance / self.delta + new >= best / self.delta


class DistanceFitness(Fitness):
    """DFlare_D of the ablation (section 5.3): H = D."""

    def __repr__(self) -> str:
        return "DistanceFitness()"

    def start(self) -> "DistanceFitness":
        """Return itself: nothing is remembered."""
        return self

    def observe(self, state: np.ndarray) -> bool:
        """Return False: nothing is ever new."""
        return False

    def accepts(self, distance: float, best: float, new: bool) -> bool:
        """Return whether D does not decrease."""
        return distance >= best


class GrowthFitness(DistanceFitness):
    """DFlare_D of the authors' program: D must exceed that of the last accepted mutant.

    Before the first one it must exceed `first`. The program starts at 1, which no difference of
    probabilities exceeds: it never accepts a mutant, and makes each from the seed.

    Args:
        first: Threshold that the D of the first accepted mutant must exceed.
    """

    def __init__(self, first: float = 1.0) -> None:
        self.first = first

    def __repr__(self) -> str:
        return f"GrowthFitness({self.first})"

    def accepts(self, distance: float, best: float, new: bool) -> bool:
        """Return whether D exceeds that of the best input, and `first`."""
        return distance > max(best, self.first)


class AnyChangeFitness(NoveltyFitness):
    """The fitness of the authors' program: D changes by more than δ, up or down, or a new pair.

    Args:
        delta: The change in D that suffices.
        radius: As in `NoveltyFitness`; the program's squared distance is 0.5.
    """

    def __init__(self, delta: float = 1e-3, radius: float = 0.5**0.5) -> None:
        super().__init__(delta, radius)

    def accepts(self, distance: float, best: float, new: bool) -> bool:
        """Return whether D changed by more than δ or the pair is new."""
        return abs(distance - best) > self.delta or new
