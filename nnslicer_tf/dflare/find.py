"""`find_deviation` and `find_deviations`: run many searches at once, within their budgets.

Searches advance in rounds. A round queries both models with one batch of inputs from all
running searches. A finished search is replaced by the next seed, so memory and batch size stay
bounded however many seeds there are.

A seed's result depends only on the seed, the models, the options and `rng`: its random stream
comes from `rng` and the seed's content, and the models' outputs do not depend on the batch
(except for the last bits of some, see `classifiers`). It is the same in any order, with any other
seeds and after a resumption, unless a timeout cuts it off.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from tqdm.auto import tqdm

from nnslicer_tf._checks import as_array, as_generator, check_labels
from nnslicer_tf._environment import announce
from nnslicer_tf._files import digest
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.dflare._checkpoint import Checkpoint, identity
from nnslicer_tf.dflare._seed_checks import check_seeds_suit
from nnslicer_tf.dflare.bounded import BoundedDomain
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.default_domain import default_domain
from nnslicer_tf.dflare.deviations import Deviation, DeviationSet, Outcome
from nnslicer_tf.dflare.domain import Domain
from nnslicer_tf.dflare.model_pair import ModelPair, Preprocess
from nnslicer_tf.dflare.search import DFlare, Found, Search, SearchSteps
from nnslicer_tf.dflare.tables import TableDomain
from nnslicer_tf.dflare.text import TextDomain
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError

_ESTIMATE_AFTER = 5.0  # seconds of searching
_LONG = 60.0  # seconds left that are worth an announcement


def find_deviation(
    original: ModelLike,
    compressed: ModelLike,
    seed_image: np.ndarray,
    preprocess: Preprocess | None = None,
    timeout: float = 180.0,
    rng: int | np.random.Generator = 0,
    *,
    max_queries: int | Literal["default"] | None = "default",
    max_distance: float | None = None,
    search: Search | None = None,
    domain: Domain | None = None,
    batch_size: int = 1,
) -> Deviation | None:
    """Search from one seed for an input on which the two models disagree.

    Arguments are those of `find_deviations`, with one input as `seed_image`, for images
    `(height, width, channels) uint8`. The result is that of `find_deviations` with the same
    `rng` and `batch_size`; the default of 1 is fastest for one seed.

    Returns:
        The deviation, or None if the budget ran out.

    Raises:
        InvalidArgumentError: if the models already disagree on the seed; and whatever
            `find_deviations` raises.
    """
    outcome = find_deviations(
        original,
        compressed,
        np.asarray(seed_image)[None],
        preprocess,
        timeout,
        rng,
        max_queries=max_queries,
        max_distance=max_distance,
        search=search,
        domain=domain,
        batch_size=batch_size,
        progress=False,
    )[0]
    deviation = outcome.deviation
    if deviation is not None and outcome.status == "already_deviates":
        raise InvalidArgumentError(
            f"The models already disagree on the seed (labels {deviation.labels}): it is "
            "a triggering input itself. Choose a seed on which they agree."
        )
    return deviation


def find_deviations(
    original: ModelLike,
    compressed: ModelLike,
    seeds: np.ndarray,
    preprocess: Preprocess | None = None,
    timeout: float = 180.0,
    rng: int | np.random.Generator = 0,
    *,
    labels: ArrayLike | None = None,
    max_queries: int | Literal["default"] | None = "default",
    max_distance: float | None = None,
    search: Search | None = None,
    domain: Domain | None = None,
    batch_size: int = 32,
    together: int = 500,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
) -> DeviationSet:
    """Search from many seeds at once (paper, Algorithm 1, one search per seed).

    Before a search both models are asked about the first 64 seeds. A warning says so if they give
    the same answers to all: then the compression may have changed nothing.

    Args:
        original: The original model; anything that `as_classifier` takes.
        compressed: The compressed model, likewise.
        seeds: `(seeds, ...)`: images `(seeds, height, width, channels) uint8`, rows of a table
            `(seeds, columns)`, signals `(seeds, steps, channels)`, sentences `(seeds, length)`
            of integers.
        preprocess: Maps a batch of seeds to the models' inputs; None: the values as float32,
            sentences as they are.
        timeout: Seconds after which a search gives up; a search's time is its share of
            the time of all concurrent searches.
        rng: Seed or generator of all random choices.
        labels: The true classes of the seeds, integers or one-hot. If given, the original must
            be right on half of the first 64, and they are included in the table.
        max_queries: Queries after which a search gives up; by default those of the search
            (`Search.max_queries`: 1,000 for DFlare, 20 generations for DiffChaser); None: no
            limit.
        max_distance: Largest change of a value of the seed, L∞; None: no limit. Without it the
            mutations of images change single pixels by up to 255. Fractions only matter for
            seeds that are not integers.
        search: How to search; None: `DFlare()`.
        domain: The kind of input; None: see `default_domain`. A table's and a signal's ranges
            are those of the seeds.
        batch_size: Fixed batch size for Keras models.
        together: How many searches run at once.
        checkpoint: A folder that keeps the finished searches; an interrupted call resumes
            from it when it is repeated.
        progress: Whether to show a progress bar.

    Returns:
        One outcome per seed; a seed on which the models already disagree is reported as
        `already_deviates` and not searched.

    Raises:
        InputShapeError: if the seeds are not valid inputs of the domain.
        InvalidArgumentError: if the models' outputs differ in size or are not probabilities, an
            argument is out of range, or `preprocess` seems to be missing or wrong: the original
            recognises images better when they are scaled differently, it is wrong on most seeds,
            by `labels`, or the two models disagree on most.
        CorruptFileError: if a TFLite model or the checkpoint is damaged.
        ProfileMismatchError: if the checkpoint belongs to other seeds, models or options.
    """
    search = DFlare() if search is None else search
    features = tuple(map(str, getattr(seeds, "columns", ())))
    seeds = as_array(seeds.x if isinstance(seeds, Dataset) else seeds)
    if max_queries == "default":
        max_queries = search.max_queries
    budget = _Budget(timeout, max_queries)
    domain = _check_arguments(seeds, domain, original, budget, max_distance, together)
    if isinstance(domain, TableDomain) and seeds.dtype.kind != "f":
        seeds = seeds.astype(np.float64)
    truth = None if labels is None else check_labels(labels, len(seeds))
    pair = ModelPair(original, compressed, domain, preprocess, batch_size)
    check_seeds_suit(pair, seeds, truth, preprocess is not None)

    streams = _streams(seeds, as_generator(rng))
    options: tuple[object, ...] = (search, budget, batch_size)
    if max_distance is not None:
        options += (max_distance,)
    work = {} if checkpoint is None else identity(pair, seeds, streams, options)
    kept = Checkpoint(checkpoint, work)
    if kept.outcomes:
        announce(
            f"Resuming: {len(kept.outcomes):,} of {len(seeds):,} searches are in '{checkpoint}'.",
            progress,
        )

    def start(index: int) -> SearchSteps:
        seed = seeds[index]
        near = domain if max_distance is None else BoundedDomain(domain, seed, max_distance)
        return search.run(seed, near, streams[index])

    waiting = [index for index in range(len(seeds)) if index not in kept.outcomes]
    with tqdm(total=len(seeds), desc="searches", disable=not progress, leave=False) as bar:
        bar.update(len(kept.outcomes))
        try:
            for index, outcome in _run(start, waiting, pair, budget, together, progress):
                kept.add(index, outcome)
                bar.update()
        except KeyboardInterrupt:
            if checkpoint is not None:
                announce(
                    f"Stopped: {len(kept.outcomes):,} of {len(seeds):,} searches are in "
                    f"'{checkpoint}'; the same call goes on from there.",
                    progress,
                )
            raise
        finally:
            kept.write()
    outcomes = [kept.outcomes[index] for index in range(len(seeds))]
    images = [o.deviation.image for o in outcomes if o.status == "found" and o.deviation]
    confidences = np.zeros((0, 2))
    if images:
        answers = pair.ask(np.stack(images))
        tops = answers.original.max(axis=1), answers.compressed.max(axis=1)
        confidences = np.stack(tops, axis=1)
    return DeviationSet(outcomes, seeds, truth, confidences, max_distance, features)


def _check_arguments(
    seeds: np.ndarray,
    domain: Domain | None,
    original: ModelLike,
    budget: "_Budget",
    max_distance: float | None,
    together: int,
) -> Domain:
    """Check the seeds and the numbers; return the domain, chosen by the seeds if it is None."""
    if seeds.ndim == 0:
        raise InputShapeError(f"Seeds must be an array of inputs. Received: {str(seeds)[:60]}")
    if len(seeds) == 0:
        raise InputShapeError("There are no seeds: pass at least one.")
    domain = default_domain(seeds, original) if domain is None else domain
    domain.check_seeds(seeds)
    if not budget.timeout > 0:
        raise InvalidArgumentError(f"timeout must be above 0 seconds. Received: {budget.timeout}")
    for name, value in (("max_queries", budget.max_queries), ("together", together)):
        if value is not None and (isinstance(value, str) or value < 1):
            raise InvalidArgumentError(f"{name} must be at least 1. Received: {value!r}")
    if max_distance is not None and isinstance(domain, TextDomain):
        raise InvalidArgumentError(
            "max_distance is the largest change of a value; the words of a sentence have none. "
            "Leave it out, and minimise what is found."
        )
    integers = seeds.dtype.kind in "iu"
    if max_distance is not None and not (max_distance >= 1 if integers else max_distance > 0):
        raise InvalidArgumentError(
            f"max_distance must be {'at least 1' if integers else 'above 0'} for seeds of "
            f"{seeds.dtype}. Received: {max_distance!r}"
        )
    return domain


@dataclass(frozen=True)
class _Budget:
    """The limits at which a search gives up."""

    timeout: float
    max_queries: int | None

    def spent(self, queries: int, seconds: float) -> str | None:
        """Return the status of a search whose budget is spent, or None."""
        if self.max_queries is not None and queries >= self.max_queries:
            return "query_budget"
        return "timeout" if seconds >= self.timeout else None

    def seconds(self, searches: int, queries_per_second: float) -> float:
        """Return how long searches take that find nothing."""
        queries = np.inf if self.max_queries is None else self.max_queries
        return searches * min(self.timeout, queries / queries_per_second)


@dataclass
class _Running:
    """A search in progress."""

    steps: SearchSteps
    asked: np.ndarray
    queries: int = 0
    seconds: float = 0.0


def _run(
    start: Callable[[int], SearchSteps],
    waiting: list[int],
    pair: ModelPair,
    budget: _Budget,
    together: int,
    progress: bool,
) -> Iterator[tuple[int, Outcome]]:
    """Run the searches, `together` at a time; yield each outcome as it becomes known."""
    queue = iter(waiting)
    running: dict[int, _Running] = {}
    begin, queries, finished = time.perf_counter(), 0, 0
    announced = False
    while True:
        clock = time.perf_counter()
        while len(running) < together and (index := next(queue, None)) is not None:
            steps = start(index)
            running[index] = _Running(steps, next(steps))
        if not running:
            return
        # Ask about the inputs of all searches at once, and hand each its answers.
        answers = pair.ask(np.concatenate([search.asked for search in running.values()]))
        ended: dict[int, tuple[str, Found | None]] = {}
        row = 0
        for index, search in running.items():
            count = len(search.asked)
            search.queries += count
            try:
                search.asked = search.steps.send(answers.part(row, row + count))
            except StopIteration as end:
                ended[index] = ("already_deviates" if end.value.trace == () else "found", end.value)
            else:
                if status := budget.spent(search.queries, search.seconds):
                    search.steps.close()
                    ended[index] = (status, None)
            row += count
        seconds = time.perf_counter() - clock
        for search in running.values():
            search.seconds += seconds / len(running)
        queries, finished = queries + row, finished + len(ended)
        if not announced and time.perf_counter() - begin > _ESTIMATE_AFTER:
            announced = True
            left = budget.seconds(len(waiting) - finished, queries / (time.perf_counter() - begin))
            if left > _LONG:
                announce(
                    f"The searches take at most {left / 60:,.0f} minutes more, if they find "
                    "nothing; max_queries and timeout limit each of them.",
                    progress,
                )
        for index, (status, found) in ended.items():
            search, deviation = running.pop(index), None
            if found is not None:
                deviation = Deviation(
                    found.x, search.queries, search.seconds, found.labels, found.trace
                )
            yield index, Outcome(status, search.queries, search.seconds, deviation)


def _streams(seeds: np.ndarray, rng: np.random.Generator) -> list[np.random.Generator]:
    """Derive a separate random stream for every seed from its content.

    Equal seeds get different streams by their order, so that their results differ.
    """
    common = int(rng.integers(2**63))
    seen: dict[bytes, int] = {}
    streams = []
    for seed in seeds:
        content = bytes.fromhex(digest([seed]))
        seen[content] = seen.get(content, -1) + 1
        entropy = [common, int.from_bytes(content, "little"), seen[content]]
        streams.append(np.random.default_rng(entropy))
    return streams
