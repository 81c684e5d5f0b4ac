"""DiffChaser, which DFlare is compared with: a genetic search guided by k-uncertainty.

Source: Xie et al., "DiffChaser" (IJCAI 2019), as described in sections 2.5 and 4.4 of the DFlare
paper. A pool of mutants is bred in two branches, one per model; each prefers inputs with a small
difference between its model's highest and k-highest probability. Details that the descriptions omit
(tournaments, uniform crossover, rates) are options. A generation takes `population` queries.
"""

from dataclasses import dataclass

import numpy as np

from nnslicer_tf._checks import check_count, check_number
from nnslicer_tf.datasets.texts import PADDING
from nnslicer_tf.dflare import Domain, SearchAlgorithm, TextDomain
from nnslicer_tf.dflare.domain import Answers
from nnslicer_tf.dflare.search import SearchSteps, Trigger
from nnslicer_tf.dflare.text import word_count
from nnslicer_tf.errors import InvalidArgumentError


@dataclass(frozen=True)
class DiffChaser(SearchAlgorithm):
    """The genetic search; few searches run together, as each queries a whole generation at once.

    Args:
        population: Inputs in the pool, and new ones per generation.
        k: Which probability is compared with the highest; checked against the number of classes
            when a search starts.
        tournament: How many inputs compete to become a parent.
        mutation_rate: The share of children that are mutated after the crossover.

    Raises:
        InvalidArgumentError: if an option is out of range.
    """

    population: int = 1000
    k: int = 2
    tournament: int = 3
    mutation_rate: float = 0.5
    max_queries: int | None = 20_000
    together: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("population", 4), ("k", 2), ("tournament", 1)):
            check_count(name, getattr(self, name), least)
        check_number("mutation_rate", self.mutation_rate, "[0, 1]")

    def run(self, seed: np.ndarray, domain: Domain, rng: np.random.Generator) -> SearchSteps:
        """Breed inputs until the models disagree on one."""
        names, half = tuple(domain.operators), self.population // 2

        def mutant(x: np.ndarray) -> np.ndarray:
            return domain.mutate(x, names[rng.integers(len(names))], rng)[0]

        answers = yield seed[None]
        classes = answers.original.shape[1]
        if self.k > classes:
            raise InvalidArgumentError(
                f"k must be in 2 … {classes}, the number of classes. Received: {self.k}"
            )
        if answers.deviates[0]:
            return _trigger(seed[None], answers, ())
        pool = np.stack([mutant(seed) for _ in range(self.population)])
        answers = yield pool
        uncertainty = self.uncertainty(answers)
        while not answers.deviates.any():
            # Each branch holds tournaments for the parents of half a generation.
            parents = []
            for branch in uncertainty:
                rivals = rng.integers(0, len(branch), (2, half, self.tournament))
                winners = branch[rivals].argmin(axis=2)
                parents.append(np.take_along_axis(rivals, winners[..., None], axis=2)[..., 0])
            first, second = np.concatenate(parents, axis=1)
            children = cross(pool[first], pool[second], domain, rng)
            for row in np.flatnonzero(rng.random(len(children)) < self.mutation_rate):
                children[row] = mutant(children[row])
            answers = yield children
            if answers.deviates.any():
                return _trigger(children, answers, None)
            # The least certain half-population of each branch survives.
            pool = np.concatenate([pool, children])
            uncertainty = np.concatenate([uncertainty, self.uncertainty(answers)], axis=1)
            best = [np.argsort(branch, kind="stable")[:half] for branch in uncertainty]
            survivors = np.unique(np.concatenate(best))
            pool, uncertainty = pool[survivors], uncertainty[:, survivors]
        return _trigger(pool, answers, None)

    def uncertainty(self, answers: Answers) -> np.ndarray:
        """Return the highest minus the k-highest probability of each model, `(2, batch)`."""
        ordered = [np.sort(o, axis=1) for o in (answers.original, answers.compressed)]
        return np.stack([outputs[:, -1] - outputs[:, -self.k] for outputs in ordered])


def cross(
    first: np.ndarray, second: np.ndarray, domain: Domain, rng: np.random.Generator
) -> np.ndarray:
    """Return children of pairs `(batch, …)`: each value from either.

    Of sentences, the start of one and the end of the other, cut at the same word.
    """
    if not isinstance(domain, TextDomain):
        return np.where(rng.random(first.shape) < 0.5, first, second)
    children = np.full_like(first, PADDING)
    for child, a, b in zip(children, first, second, strict=True):
        cut = int(rng.integers(1, word_count(a) + 1))
        words = np.concatenate([a[:cut], b[cut : max(cut, word_count(b))]])
        child[: len(words)] = words
    return children


def _trigger(batch: np.ndarray, answers: Answers, trace: tuple | None) -> Trigger:
    """Return the first input of a batch on which the models disagree."""
    row = int(answers.deviates.argmax())
    first, second = answers.labels[row].tolist()
    return Trigger(batch[row].copy(), (first, second), trace)
