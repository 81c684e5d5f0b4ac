"""Algorithm 1: the search for one deviation, as a coroutine.

A search yields batches of inputs, is sent the two models' `Answers`, and returns a deviation. Its
caller counts queries and time, and can run many searches in step. Two extensions are optional:

*Patience*: at a local maximum of the fitness, the last of `patience` rejected mutants in a row is
accepted. *Bisection*: models deviate between their nearly equal decision boundaries. A mutation
that crosses both is halved until the models disagree, at most `bisections` times, and the input
nearest to the boundary is judged by its fitness.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nnslicer_tf._checks import check_count, check_name, check_number, of_user
from nnslicer_tf.dflare.domain import Answers, Domain, Mutation

Fitness = Callable[[float, float, bool], bool]
"""`fitness(distance, best, new)`: whether a mutant replaces the best input. `distance` and `best`
are D of the two, `new` whether the mutant's pair of probability vectors was not seen before."""

Selection = Callable[[np.ndarray, int | None, np.random.Generator], int]
"""`selection(values, last, rng)`: the index of the next operator. `values` has the share of each
operator's mutants that were accepted; `last` is the previous index, None at first."""


class Trigger(NamedTuple):
    """The result of a search."""

    x: np.ndarray  # the triggering input
    labels: tuple[int, int]  # the labels of the original and the compressed model
    trace: tuple[Mutation, ...] | None  # from the seed to `x`; None if there is no such chain


SearchSteps = Generator[np.ndarray, Answers, Trigger]


@dataclass(frozen=True, kw_only=True)
class SearchAlgorithm(ABC):
    """The options and budget of a search; one object serves many seeds.

    Args:
        max_queries: Queries after which a search gives up; None: no limit.
        timeout: Seconds of a search (its share of concurrent ones' time) until it gives up.
        max_distance: Largest change of a value of the seed, L∞; None: no limit, where mutations of
            images change single pixels by up to 255. Fractions matter only for float seeds.
        together: Maximum number of concurrent searches.

    Raises InvalidArgumentError if an option is out of range.
    """

    max_queries: int | None = 1000
    timeout: float = 180.0
    max_distance: float | None = None
    together: int = 500

    def __post_init__(self) -> None:
        if self.max_queries is not None:
            check_count("max_queries", self.max_queries)
        check_count("together", self.together)
        check_number("timeout", self.timeout, "(0, inf]")

    @abstractmethod
    def run(self, seed: np.ndarray, domain: Domain, rng: np.random.Generator) -> SearchSteps:
        """Search from a seed on which the models agree, and return the triggering input.

        Args:
            seed: One input.
            domain: Its mutation operators.
            rng: The only source of randomness.

        Yields:
            Batches of inputs `(k, ...)`; send in the `Answers` for each.
        """


def uniform(values: np.ndarray, last: int | None, rng: np.random.Generator) -> int:
    """Select every operator with equal probability: DFlare_R of the ablation (section 5.3)."""
    return int(rng.integers(len(values)))


def metropolis_hastings(values: np.ndarray, last: int | None, rng: np.random.Generator) -> int:
    """Select as Algorithm 2: accept a random operator with (1 − p)^(rank − rank of the last).

    Ranks start at the operator with the highest value; p is one over the number of operators.
    """
    if last is None:
        return uniform(values, last, rng)
    ranks = np.argsort(np.argsort(-values, kind="stable"), kind="stable")
    while True:
        candidate = uniform(values, last, rng)
        if rng.random() < (1 - 1 / len(values)) ** int(ranks[candidate] - ranks[last]):
            return candidate


SELECTIONS: dict[str, Selection] = {"metropolis_hastings": metropolis_hastings, "uniform": uniform}


class _Candidate(NamedTuple):
    """An input, the mutations that made it, and the models' responses."""

    x: np.ndarray
    trace: tuple[Mutation, ...]
    labels: tuple[int, int]
    deviates: bool
    distance: float
    new: bool


@dataclass(frozen=True)
class DFlare(SearchAlgorithm):
    """The search of the paper (section 3), with patience and bisection.

    `DFlare(patience=None, bisections=0)` is exactly Algorithm 1.

    Args:
        fitness: Which mutants are accepted. "novelty" is the paper's H = D / δ + O: the larger
            difference D of the top-1 probabilities wins; within δ, a mutant with a new pair of
            probability vectors. "distance" is H = D, the ablation DFlare_D (section 5.3). Or a
            function `(distance, best, new) -> bool`.
        selection: How the next operator is chosen: "metropolis_hastings" (Algorithm 2),
            "uniform" (DFlare_R), or a function `(values, last, rng) -> index`.
        patience: Number of rejected mutants in a row of which the last is accepted; None: no limit.
        bisections: Halvings after a mutation that crossed the decision boundary; 0: none.
        delta: δ, the difference in D below which O decides.
        radius: L2 distance to all earlier pairs of probability vectors beyond which one is new.

    Raises InvalidArgumentError if an option is out of range.
    """

    fitness: str | Fitness = "novelty"
    selection: str | Selection = "metropolis_hastings"
    patience: int | None = 5
    bisections: int = 10
    delta: float = 1e-3
    radius: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.fitness):
            check_name("fitness", self.fitness, ("novelty", "distance"))
        if not callable(self.selection):
            check_name("selection", self.selection, SELECTIONS)
        check_count("bisections", self.bisections, 0)
        if self.patience is not None:
            check_count("patience", self.patience)
        check_number("delta", self.delta, "(0, inf)")
        check_number("radius", self.radius, "[0, inf)")

    def accepts(self, distance: float, best: float, new: bool) -> bool:
        """Return whether a mutant with D `distance` replaces the best input, with D `best`."""
        if callable(self.fitness):
            with of_user("fitness"):
                return self.fitness(distance, best, new)
        # The best input was observed before, so its own O is 0.
        return distance / self.delta + (new and self.fitness == "novelty") >= best / self.delta

    def run(self, seed: np.ndarray, domain: Domain, rng: np.random.Generator) -> SearchSteps:
        """Mutate the best input until the models disagree."""
        names = tuple(domain.operators)
        select = self.selection if callable(self.selection) else SELECTIONS[self.selection]
        accepted, used, last = np.zeros(len(names)), np.zeros(len(names)), None
        seen = _SeenStates(self.radius)
        best, rejected = (yield from _ask(seed, (), seen)), 0
        while not best.deviates:
            with of_user("selection"):
                last = select(accepted / (used + 1e-7), last, rng)
            x, mutation = domain.mutate(best.x, names[last], rng)
            mutant = yield from _ask(x, (*best.trace, mutation), seen)
            if not mutant.deviates and mutant.labels != best.labels:
                mutant = yield from self._bisect(best, mutant, domain, seen)
            fits = self.accepts(mutant.distance, best.distance, mutant.new)
            used[last] += 1
            accepted[last] += fits
            rejected = 0 if fits else rejected + 1
            if mutant.deviates or fits or rejected == self.patience:
                best, rejected = mutant, 0
        return Trigger(best.x, best.labels, best.trace)

    def _bisect(
        self, best: _Candidate, mutant: _Candidate, domain: Domain, seen: "_SeenStates"
    ) -> Generator[np.ndarray, Answers, _Candidate]:
        """Bisect between `best` and `mutant`; return a deviation, or the input of largest D."""
        *earlier, mutation = mutant.trace
        near, far, low, high = best, mutant, 0.0, 1.0
        for _ in range(self.bisections):
            share = (low + high) / 2
            x = domain.blend(best.x, mutant.x, share)
            if np.array_equal(x, near.x) or np.array_equal(x, far.x):
                break
            middle = yield from _ask(x, (*earlier, replace(mutation, share=share)), seen)
            if middle.deviates:
                return middle
            if middle.labels == best.labels:
                near, low = middle, share
            else:
                far, high = middle, share
        return max([end for end in (near, far) if end is not best], key=lambda end: end.distance)


def _ask(
    x: np.ndarray, trace: tuple[Mutation, ...], seen: "_SeenStates"
) -> Generator[np.ndarray, Answers, _Candidate]:
    """Query the models with one input, and record the answers."""
    answers = yield x[None]
    state = np.concatenate([answers.original[0], answers.compressed[0]])
    first, second = answers.labels[0].tolist()
    deviates, distance = bool(answers.deviates[0]), float(answers.distance[0])
    return _Candidate(x, trace, (first, second), deviates, distance, seen.add(state))


class _SeenStates:
    """The pairs of probability vectors seen by one search."""

    def __init__(self, radius: float) -> None:
        self._squared_radius = radius**2
        self._states = np.empty((0, 1), np.float32)

    def add(self, state: np.ndarray) -> bool:
        """Add the pair `(2 × classes,) float32`; return whether it was new."""
        state = state.ravel()
        difference = self._states - state
        squares = np.einsum("ij,ij->i", difference, difference)
        if squares.min(initial=np.inf) <= self._squared_radius:
            return False  # and near another one, it cannot affect later decisions
        self._states = np.append(self._states, state.astype(np.float32)).reshape(-1, len(state))
        return True
