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

import numpy as np
from numpy.typing import ArrayLike
from tqdm.auto import tqdm

from nnslicer_tf._checks import as_array, check_labels
from nnslicer_tf._digests import digest
from nnslicer_tf._random import as_generator
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.dflare._checkpoint import Checkpoint, identity
from nnslicer_tf.dflare.bounded import BoundedDomain
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.deviations import Deviation, DeviationSet, Outcome
from nnslicer_tf.dflare.domain import Domain
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.model_pair import ModelPair, Preprocess
from nnslicer_tf.dflare.search import DFlare, Found, Search, SearchSteps
from nnslicer_tf.dflare.text import TextDomain
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError

_LOOKED_AT = 64  # seeds used to check whether preprocessing is missing
_CERTAIN = 1 - 1e-6
_FEWEST = 8  # fewer seeds say nothing about the models
_RIGHT, _DIFFER = 0.5, 0.75


def find_deviation(
    original: ModelLike,
    compressed: ModelLike,
    seed_image: np.ndarray,
    preprocess: Preprocess | None = None,
    timeout: float = 180.0,
    rng: int | np.random.Generator = 0,
    *,
    max_queries: int | None = None,
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
    seeds = np.asarray(seed_image)[None]
    outcome = find_deviations(
        original,
        compressed,
        seeds,
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
    max_queries: int | None = None,
    max_distance: float | None = None,
    search: Search | None = None,
    domain: Domain | None = None,
    batch_size: int = 32,
    together: int = 500,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
) -> DeviationSet:
    """Search from many seeds at once (paper, Algorithm 1, one search per seed).

    Args:
        original: The original model; anything that `as_classifier` takes.
        compressed: The compressed model, likewise.
        seeds: `(seeds, ...)`; images are `(seeds, height, width, channels) uint8`.
        preprocess: Maps `(batch, height, width, channels) uint8` to the models' inputs;
            None: the values as float32, sentences as they are.
        timeout: Seconds after which a search gives up; a search's time is its share of
            the time of all concurrent searches.
        rng: Seed or generator of all random choices.
        labels: The true classes of the seeds, integers or one-hot. If given, the original must
            be right on half of the first 64, and they are included in the table.
        max_queries: Queries after which a search gives up; None: no limit.
        max_distance: Largest change of a value of the seed, L∞; None: no limit. Without it the
            mutations of images change single pixels by up to 255. Fractions only matter for
            seeds that are not integers.
        search: How to search; None: `DFlare()`.
        domain: The kind of input; None: `ImageDomain()`.
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
            argument is out of range, or `preprocess` seems to be missing: the original is
            certain about nearly all seeds as they are, but not when they are scaled to
            [0, 1]; it is wrong on most of them, by `labels`; or the two models disagree on most.
        CorruptFileError: if a TFLite model or the checkpoint is damaged.
        ProfileMismatchError: if the checkpoint belongs to other seeds, models or options.
    """
    search = DFlare() if search is None else search
    domain = ImageDomain() if domain is None else domain
    seeds = as_array(seeds.x if isinstance(seeds, Dataset) else seeds)
    if seeds.ndim == 0:
        raise InputShapeError(f"Seeds must be an array of inputs. Received: {str(seeds)[:60]}")
    _check(seeds, domain, timeout, max_queries, together)
    if max_distance is not None:
        _check_distance(max_distance, seeds, domain)
    truth = None if labels is None else check_labels(labels, len(seeds))
    pair = ModelPair(original, compressed, domain, preprocess, batch_size)
    if preprocess is None and isinstance(domain, ImageDomain):
        _check_scale(pair, seeds[:_LOOKED_AT])
    _check_answers(pair, seeds[:_LOOKED_AT], truth)
    budget = _Budget(timeout, max_queries)
    streams = _streams(seeds, as_generator(rng))
    options: tuple[object, ...] = (search, budget, batch_size)
    if max_distance is not None:
        options += (max_distance,)
    work = {} if checkpoint is None else identity(pair, seeds, streams, options)
    kept = Checkpoint(checkpoint, work)

    def start(index: int) -> SearchSteps:
        seed = seeds[index]
        near = domain if max_distance is None else BoundedDomain(domain, seed, max_distance)
        return search.run(seed, near, streams[index])

    waiting = [index for index in range(len(seeds)) if index not in kept.outcomes]
    with tqdm(total=len(seeds), desc="searches", disable=not progress, leave=False) as bar:
        bar.update(len(kept.outcomes))
        try:
            for index, outcome in _run(start, waiting, pair, budget, together):
                kept.add(index, outcome)
                bar.update()
        finally:
            kept.write()
    outcomes = [kept.outcomes[index] for index in range(len(seeds))]
    return DeviationSet(outcomes, seeds, truth, _confidences(pair, outcomes), max_distance)


def _confidences(pair: ModelPair, outcomes: list[Outcome]) -> np.ndarray:
    """Return both models' probability of their labels on the deviations, `(found, 2)`."""
    images = [o.deviation.image for o in outcomes if o.status == "found" and o.deviation]
    if not images:
        return np.zeros((0, 2))
    answers = pair.ask(np.stack(images))
    return np.stack([answers.original.max(axis=1), answers.compressed.max(axis=1)], axis=1)


def _check_answers(pair: ModelPair, seeds: np.ndarray, truth: np.ndarray | None) -> None:
    """Reject seeds that the models do not seem to be made for.

    If the original is wrong on most seeds, or the compressed model disagrees with it on most, they
    were not trained on such inputs, and what a search finds is not a deviation.
    """
    if len(seeds) < _FEWEST:
        return
    answers = pair.ask(seeds)
    remedy = (
        "Pass as preprocess what the models were trained with, such as "
        "lambda x: x.astype('float32') / 255."
    )
    if truth is not None:
        right = float((answers.labels[:, 0] == truth[: len(seeds)]).mean())
        if right < _RIGHT:
            raise InvalidArgumentError(
                f"The original model is right on {right:.0%} of the first {len(seeds)} seeds. "
                f"{remedy} If these are its seeds nevertheless, leave out labels."
            )
    differ = float(answers.deviates.mean())
    if differ > _DIFFER:
        raise InvalidArgumentError(
            f"The two models disagree on {differ:.0%} of the first {len(seeds)} seeds as they are. "
            f"{remedy} If they are two versions of one model, look at their accuracies first."
        )


def _check_scale(pair: ModelPair, seeds: np.ndarray) -> None:
    """Reject images of 0 to 255 if the original model was trained on images of 0 to 1.

    Its outputs would be saturated, and mutations would cross the boundary anywhere: most
    deviations found would not exist on scaled images.
    """
    raw, scaled = (
        np.mean(pair.original.probabilities(seeds * np.float32(factor)).max(axis=1) >= _CERTAIN)
        for factor in (1, 1 / 255)
    )
    if raw >= 0.9 and scaled < 0.5:
        raise InvalidArgumentError(
            f"The original model is certain of {raw:.0%} of the seeds as they are (0 to 255), and "
            f"of {scaled:.0%} when they are divided by 255: it was probably trained on scaled "
            "images. Pass preprocess=lambda x: x.astype('float32') / 255, or what it was trained "
            "with; with preprocess=lambda x: x.astype('float32') the seeds are used as they are."
        )


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
) -> Iterator[tuple[int, Outcome]]:
    """Run the searches, `together` at a time; yield each outcome as it becomes known."""
    queue = iter(waiting)
    running: dict[int, _Running] = {}
    while True:
        clock = time.perf_counter()
        while len(running) < together and (index := next(queue, None)) is not None:
            steps = start(index)
            running[index] = _Running(steps, next(steps))
        if not running:
            return
        finished = _round(running, pair, budget)
        seconds = time.perf_counter() - clock
        for search in running.values():
            search.seconds += seconds / len(running)
        for index, (status, found) in finished.items():
            yield index, _outcome(running.pop(index), status, found)


def _round(
    running: dict[int, _Running], pair: ModelPair, budget: _Budget
) -> dict[int, tuple[str, Found | None]]:
    """Answer every running search once; return those that ended, with status and result."""
    answers = pair.ask(np.concatenate([search.asked for search in running.values()]))
    finished: dict[int, tuple[str, Found | None]] = {}
    row = 0
    for index, search in running.items():
        count = len(search.asked)
        search.queries += count
        try:
            search.asked = search.steps.send(answers.part(row, row + count))
        except StopIteration as end:
            status = "already_deviates" if end.value.trace == () else "found"
            finished[index] = (status, end.value)
        else:
            spent = budget.spent(search.queries, search.seconds)
            if spent:
                search.steps.close()
                finished[index] = (spent, None)
        row += count
    return finished


def _outcome(search: _Running, status: str, found: Found | None) -> Outcome:
    if found is None:
        return Outcome(status, search.queries, search.seconds)
    deviation = Deviation(found.x, search.queries, search.seconds, found.labels, found.trace)
    return Outcome(status, search.queries, search.seconds, deviation)


def _check(
    seeds: np.ndarray, domain: Domain, timeout: float, max_queries: int | None, together: int
) -> None:
    if len(seeds) == 0:
        raise InputShapeError("There are no seeds: pass at least one.")
    domain.check_seeds(seeds)
    if not timeout > 0:
        raise InvalidArgumentError(f"timeout must be above 0 seconds. Received: {timeout}")
    if max_queries is not None and max_queries < 1:
        raise InvalidArgumentError(f"max_queries must be at least 1. Received: {max_queries}")
    if together < 1:
        raise InvalidArgumentError(f"together must be at least 1. Received: {together}")


def _check_distance(max_distance: float, seeds: np.ndarray, domain: Domain) -> None:
    if isinstance(domain, TextDomain):
        raise InvalidArgumentError(
            "max_distance is the largest change of a value; the words of a sentence have none. "
            "Leave it out, and minimise what is found."
        )
    integers = seeds.dtype.kind in "iu"
    if not (max_distance >= 1 if integers else max_distance > 0):
        raise InvalidArgumentError(
            f"max_distance must be {'at least 1' if integers else 'above 0'} for seeds of "
            f"{seeds.dtype}. Received: {max_distance!r}"
        )


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
