"""DiffChaser, the baseline: a genetic search guided by k-uncertainty.

Source: Xie et al., "DiffChaser: Detecting Disagreements for Deep Neural Networks" (IJCAI
2019), as described in sections 2.5 and 4.4 of the DFlare paper. A pool of mutants of the
seed is bred in two branches, one for each model: a branch prefers inputs on which its
model is uncertain, that is, with a small difference between the highest and the k-highest
probability. Details that the descriptions omit (tournaments, uniform crossover, rates) are
options.

Cost: `population` queries per generation, thousands per seed; run few seeds together, since each
queries a whole generation at once.
"""

from dataclasses import dataclass

import numpy as np

from nnslicer_tf.dflare.domain import Answers, Domain
from nnslicer_tf.dflare.search import Found, Search, SearchSteps
from nnslicer_tf.errors import InvalidArgumentError


def k_uncertainty(probabilities: np.ndarray, k: int) -> np.ndarray:
    """Return the highest minus the k-highest probability; smaller is less certain.

    Args:
        probabilities: `(batch, classes)`.
        k: 2 … classes.
    """
    ordered = np.sort(probabilities, axis=1)
    return ordered[:, -1] - ordered[:, -k]


@dataclass(frozen=True)
class DiffChaser(Search):
    """The genetic search.

    Args:
        population: Inputs in the pool, and new ones per generation.
        k: Which probability is compared with the highest.
        tournament: How many inputs compete to become a parent.
        mutation_rate: The share of children that are mutated after the crossover.

    Raises:
        InvalidArgumentError: if an option is out of range; `k` above the number of classes is
            only detected when a search starts.
    """

    population: int = 1000
    k: int = 2
    tournament: int = 3
    mutation_rate: float = 0.5

    def __post_init__(self) -> None:
        if self.population < 4 or self.k < 2 or self.tournament < 1:
            raise InvalidArgumentError(
                "population must be at least 4, k at least 2, tournament at least 1. "
                f"Received: {self.population}, {self.k}, {self.tournament}"
            )
        if not 0 <= self.mutation_rate <= 1:
            raise InvalidArgumentError(
                f"mutation_rate must be in 0 … 1. Received: {self.mutation_rate}"
            )

    @property
    def max_queries(self) -> int:  # type: ignore[override]
        """Those of 20 generations."""
        return 20 * self.population

    def run(self, seed: np.ndarray, domain: Domain, rng: np.random.Generator) -> SearchSteps:
        """Breed inputs until the models disagree on one."""
        answers = yield seed[None]
        self._check_classes(answers.original.shape[1])
        if answers.deviates[0]:
            return _found(seed[None], answers, trace=())
        pool = np.stack([_mutant(seed, domain, rng) for _ in range(self.population)])
        answers = yield pool
        uncertainty = self._uncertainty(answers)
        while not answers.deviates.any():
            children = self._breed(pool, uncertainty, domain, rng)
            answers = yield children
            if answers.deviates.any():
                return _found(children, answers, trace=None)
            pool = np.concatenate([pool, children])
            uncertainty = np.concatenate([uncertainty, self._uncertainty(answers)], axis=1)
            kept = self._survivors(uncertainty)
            pool, uncertainty = pool[kept], uncertainty[:, kept]
        return _found(pool, answers, trace=None)

    def _check_classes(self, classes: int) -> None:
        if self.k > classes:
            raise InvalidArgumentError(
                f"k must be in 2 … {classes}, the number of classes. Received: {self.k}"
            )

    def _uncertainty(self, answers: Answers) -> np.ndarray:
        """Return `(2, batch)`: one row for each model's branch."""
        models = (answers.original, answers.compressed)
        return np.stack([k_uncertainty(outputs, self.k) for outputs in models])

    def _breed(
        self, pool: np.ndarray, uncertainty: np.ndarray, domain: Domain, rng: np.random.Generator
    ) -> np.ndarray:
        """Return a generation, half of it from each branch."""
        half = self.population // 2
        parents = [self._parents(branch, half, rng) for branch in uncertainty]
        first, second = np.concatenate(parents, axis=1)
        children = domain.cross(pool[first], pool[second], rng)
        for row in np.flatnonzero(rng.random(len(children)) < self.mutation_rate):
            children[row] = _mutant(children[row], domain, rng)
        return children

    def _parents(self, branch: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return `(2, count)` indices, each the winner of a tournament."""
        rivals = rng.integers(0, len(branch), (2, count, self.tournament))
        winners = branch[rivals].argmin(axis=2)
        return np.take_along_axis(rivals, winners[..., None], axis=2)[..., 0]

    def _survivors(self, uncertainty: np.ndarray) -> np.ndarray:
        """Return the indices of the least certain half-population of each branch."""
        half = self.population // 2
        best = [np.argsort(branch, kind="stable")[:half] for branch in uncertainty]
        return np.unique(np.concatenate(best))


def _mutant(x: np.ndarray, domain: Domain, rng: np.random.Generator) -> np.ndarray:
    names = tuple(domain.operators)
    return domain.mutate(x, names[rng.integers(len(names))], rng)[0]


def _found(batch: np.ndarray, answers: Answers, trace: tuple | None) -> Found:
    row = int(answers.deviates.argmax())
    first, second = answers.labels[row].tolist()
    return Found(batch[row].copy(), (first, second), trace)
