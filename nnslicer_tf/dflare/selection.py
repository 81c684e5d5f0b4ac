"""Selection of the next mutation operator (paper, Algorithm 2).

A selection ranks the operators by v = accepted mutants / uses, and chooses them as a Markov
chain. Cost: a few microseconds per choice.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np


class OperatorSelection(ABC):
    """Chooses operators for one search; `start` returns a fresh one for each search."""

    @abstractmethod
    def start(self, operators: Sequence[str]) -> Self:
        """Return a copy without history, for these operators."""

    @abstractmethod
    def next(self, rng: np.random.Generator) -> str:
        """Return the operator for the next mutant."""

    @abstractmethod
    def update(self, operator: str, accepted: bool) -> None:
        """Record whether the operator's last mutant was accepted."""


class Uniform(OperatorSelection):
    """DFlare_R of the ablation (section 5.3): every operator with equal probability."""

    def __init__(self) -> None:
        self._operators: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def start(self, operators: Sequence[str]) -> Self:
        """Return a copy for these operators."""
        fresh = type(self)()
        fresh._operators = tuple(operators)
        return fresh

    def next(self, rng: np.random.Generator) -> str:
        """Return a random operator."""
        return self._operators[rng.integers(len(self._operators))]

    def update(self, operator: str, accepted: bool) -> None:
        """Do nothing."""


class MetropolisHastings(Uniform):
    """Algorithm 2: a random operator, accepted with (1 − p)^(rank − rank of the last one).

    Ranks count from the operator with the highest ranking value v; p is one over the
    number of operators, so that a worse operator is accepted less often and a better one
    always.
    """

    epsilon = 1e-7

    def __init__(self) -> None:
        super().__init__()
        self._accepted: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self._last: str | None = None

    def start(self, operators: Sequence[str]) -> Self:
        """Return a copy for these operators, all unused."""
        fresh = super().start(operators)
        fresh._accepted = dict.fromkeys(operators, 0)
        fresh._used = dict.fromkeys(operators, 0)
        return fresh

    def update(self, operator: str, accepted: bool) -> None:
        """Count the use and whether it was accepted."""
        self._used[operator] += 1
        self._accepted[operator] += accepted

    def next(self, rng: np.random.Generator) -> str:
        """Return the next state of the chain; the first one is uniform."""
        if self._last is None:
            self._last = super().next(rng)
            return self._last
        ranks = self._ranks()
        while True:
            candidate = super().next(rng)
            if rng.random() < self._acceptance(ranks[candidate], ranks[self._last]):
                self._last = candidate
                return candidate

    def _acceptance(self, rank: int, last_rank: int) -> float:
        return (1 - 1 / len(self._operators)) ** (rank - last_rank)

    def _ranks(self) -> dict[str, int]:
        ordered = sorted(self._operators, key=self._value, reverse=True)
        return {operator: rank for rank, operator in enumerate(ordered)}

    def _value(self, operator: str) -> float:
        return self._accepted[operator] / (self._used[operator] + self.epsilon)


class RankOnly(MetropolisHastings):
    """The selection of the authors' program: the acceptance ignores the last operator."""

    def _acceptance(self, rank: int, last_rank: int) -> float:
        return super()._acceptance(rank, 0)
