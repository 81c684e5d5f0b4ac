"""Algorithm 1: the search for one deviation, as a coroutine.

A search is a generator: it yields a batch of inputs and is sent the two models' `Answers` for
them; it returns when it has found a deviation, and otherwise never ends. Its caller counts
queries and time. So one caller can advance many searches in step and query the models with all
their inputs at once.

Two things go beyond the paper; each has an option that turns it off.

*Patience.* The search is stuck where no mutant reaches the fitness of the best input: the
difference D has a local maximum there, perhaps at the seed itself if the compressed model's
probabilities are coarse. The last of `patience` rejected mutants in a row is accepted,
whatever its fitness.

*Bisection.* The two models have nearly the same decision boundary, and deviate between
one's and the other's. When a mutation moves the input across it (both models change their
label, to the same one), the search applies less of that mutation: it bisects until the models
disagree, or for `bisections` halvings, or until two neighbours differ only by rounding. The
input nearest to the boundary is then accepted or rejected by its fitness, like any mutant.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np

from nnslicer_tf.dflare.domain import Answers, Domain, Mutation
from nnslicer_tf.dflare.fitness import Fitness, NoveltyFitness
from nnslicer_tf.dflare.selection import MetropolisHastings, OperatorSelection
from nnslicer_tf.errors import InvalidArgumentError


@dataclass(frozen=True)
class Found:
    """The result of a search: a triggering input.

    Attributes:
        x: The triggering input.
        labels: The labels of the original and the compressed model.
        trace: The mutations that lead from the seed to it; None if there is no such chain.
    """

    x: np.ndarray
    labels: tuple[int, int]
    trace: tuple[Mutation, ...] | None


SearchSteps = Generator[np.ndarray, Answers, Found]


class Search(ABC):
    """A search algorithm; holds options only, so that one object serves many seeds.

    Attributes:
        max_queries: Queries after which `find_deviations` gives up by default.
    """

    max_queries: int = 1000

    @abstractmethod
    def run(self, seed: np.ndarray, domain: Domain, rng: np.random.Generator) -> SearchSteps:
        """Search from a seed on which the models agree.

        Args:
            seed: One input.
            domain: Its mutation operators.
            rng: The only source of randomness.

        Yields:
            Batches of inputs `(k, ...)`. `Answers` for them must be sent in.

        Returns:
            The triggering input.
        """


@dataclass(frozen=True)
class DFlare(Search):
    """The search of the paper (section 3), with patience and bisection.

    `DFlare(patience=None, bisections=0)` is exactly Algorithm 1.

    Args:
        fitness: Decides which mutants are accepted.
        selection: Chooses the next operator.
        patience: Number of rejected mutants in a row after which the last one is accepted;
            None: never.
        bisections: Halvings after a mutation that crossed the decision boundary; 0: none.

    Raises:
        InvalidArgumentError: if `patience` is below 1 or `bisections` below 0.
    """

    fitness: Fitness = field(default_factory=NoveltyFitness)
    selection: OperatorSelection = field(default_factory=MetropolisHastings)
    patience: int | None = 5
    bisections: int = 10

    def __post_init__(self) -> None:
        if (self.patience is not None and self.patience < 1) or self.bisections < 0:
            raise InvalidArgumentError(
                "patience must be at least 1, or None, and bisections at least 0. "
                f"Received: {self.patience}, {self.bisections}"
            )

    def run(self, seed: np.ndarray, domain: Domain, rng: np.random.Generator) -> SearchSteps:
        """Mutate the best input until the models disagree."""
        fitness = self.fitness.start()
        selection = self.selection.start(tuple(domain.operators))
        best, refused = (yield from _ask(seed, (), fitness)), 0
        while not best.deviates:
            operator = selection.next(rng)
            x, mutation = domain.mutate(best.x, operator, rng)
            mutant = yield from _ask(x, (*best.trace, mutation), fitness)
            if not mutant.deviates and mutant.labels != best.labels:
                mutant = yield from self._bisect(best, mutant, domain, fitness)
            accepted = fitness.accepts(mutant.distance, best.distance, mutant.new)
            selection.update(operator, accepted)
            refused = 0 if accepted else refused + 1
            if mutant.deviates or accepted or refused == self.patience:
                best, refused = mutant, 0
        return Found(best.x, best.labels, best.trace)

    def _bisect(
        self, best: "_Candidate", mutant: "_Candidate", domain: Domain, fitness: Fitness
    ) -> Generator[np.ndarray, Answers, "_Candidate"]:
        """Bisect between `best` and `mutant`; return a deviation, or the largest distance."""
        *earlier, mutation = mutant.trace
        near, far, low, high = best, mutant, 0.0, 1.0
        for _ in range(self.bisections):
            share = (low + high) / 2
            x = domain.blend(best.x, mutant.x, share)
            if np.array_equal(x, near.x) or np.array_equal(x, far.x):
                break
            trace = (*earlier, replace(mutation, share=share))
            middle = yield from _ask(x, trace, fitness)
            if middle.deviates:
                return middle
            if middle.labels == best.labels:
                near, low = middle, share
            else:
                far, high = middle, share
        ends = [end for end in (near, far) if end is not best]
        return max(ends, key=lambda end: end.distance)


@dataclass(frozen=True)
class _Candidate:
    """An input, the mutations that made it, and the responses of the models and the fitness."""

    x: np.ndarray
    trace: tuple[Mutation, ...]
    labels: tuple[int, int]
    deviates: bool
    distance: float
    new: bool


def _ask(
    x: np.ndarray, trace: tuple[Mutation, ...], fitness: Fitness
) -> Generator[np.ndarray, Answers, _Candidate]:
    """Query the models with one input, and let the fitness observe the answers."""
    answers = yield x[None]
    state = np.concatenate([answers.original[0], answers.compressed[0]])
    return _Candidate(
        x=x,
        trace=trace,
        labels=(int(answers.labels[0, 0]), int(answers.labels[0, 1])),
        deviates=bool(answers.deviates[0]),
        distance=float(answers.distance[0]),
        new=fitness.observe(state),
    )
