"""`find_deviations`: run many searches at once, within their budgets.

Each round queries both models with one batch of inputs from all running searches. A finished search
makes room for the next seed, so memory and batch size stay bounded.

A seed's result depends only on the seed, the models, the options and `rng`, not on the order, the
other seeds or a resumption, unless a timeout ends it: its random stream comes from `rng` and its
content, and the outputs do not depend on the batch (but see `classifiers` on last bits).
"""

import os
import time
from dataclasses import dataclass, replace

import numpy as np

from nnslicer_tf._checks import ArrayLike, as_array, as_generator, check_labels, check_number
from nnslicer_tf._environment import announce, progress_bar
from nnslicer_tf._files import digest
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.dflare.classifiers import rows_within_memory
from nnslicer_tf.dflare.deviations import (
    Deviation,
    DeviationSet,
    SearchOutcome,
    certainties,
    pack,
    unpack,
)
from nnslicer_tf.dflare.domain import LABEL_MARGIN, NO_LABEL
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.dflare.search import DFlare, SearchAlgorithm, SearchSteps
from nnslicer_tf.dflare.tables import TableDomain
from nnslicer_tf.dflare.text import TextDomain
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from nnslicer_tf.instrument.data import aligned, dense
from nnslicer_tf.instrument.fingerprint import described
from nnslicer_tf.instrument.plausibility import MIN_SAMPLES, warn, warn_of_answers

_WRITE_EVERY = 15.0  # seconds between two writes of a checkpoint
_MAX_SEEDS = 64


@dataclass
class _Running:
    """A search in progress: the inputs that it asks about, and the queries and time used so far."""

    steps: SearchSteps
    asked: np.ndarray
    queries: int = 0
    seconds: float = 0.0


def find_deviations(
    pair: ModelPair,
    seeds: np.ndarray | Dataset,
    labels: ArrayLike | None = None,
    *,
    search: SearchAlgorithm | None = None,
    rng: int | np.random.Generator = 0,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
) -> DeviationSet:
    """Search from many seeds at once (paper, Algorithm 1, one search per seed).

    A `PlausibilityWarning` says so if the first 64 seeds do not seem to suit the models, or if both
    models answer them identically: the original misclassifies most, or recognises images better
    when scaled differently, or the models mostly disagree.

    Args:
        pair: The models, and how seeds become their inputs.
        seeds: `(seeds, ...)`: images `(seeds, height, width, channels) uint8`, rows of a table
            `(seeds, columns)`, signals `(seeds, steps, channels)`, sentences `(seeds, length)`.
        labels: The true classes of the seeds, integers or one-hot; None if unknown.
        search: The algorithm and its budget per seed; None: `DFlare()`.
        rng: Seed or generator of all random choices.
        checkpoint: A folder for finished searches; repeat an interrupted call to resume from it.
        progress: Whether to show a progress bar.

    Returns one outcome per seed; those on which the models disagree already have
    `already_deviates`.

    Raises InputShapeError if the seeds are not valid inputs of the domain; InvalidArgumentError if
    the outputs differ in size, are neither probabilities nor numbers with a tolerance (see
    `ModelPair`), or an argument is out of range; CorruptFileError if the checkpoint is damaged;
    ProfileMismatchError if the checkpoint belongs to other seeds, models or options.
    """
    search = DFlare() if search is None else search
    generator = as_generator(rng)
    seeds = aligned(seeds, pair.columns) if isinstance(pair, ModelPair) else seeds
    features = tuple(map(str, getattr(seeds, "columns", ())))
    seeds, pair = _checked(pair, seeds, search)
    truth = None if labels is None else check_labels(labels, len(seeds))
    _warn_of_seeds(pair, seeds, truth)

    # A random stream for each seed, from its content; equal seeds differ by their order.
    common, copies, streams = int(generator.integers(2**63)), dict[bytes, int](), []
    for seed in seeds:
        content = bytes.fromhex(digest([seed]))
        copies[content] = copies.get(content, -1) + 1
        entropy = [common, int.from_bytes(content, "little"), copies[content]]
        streams.append(np.random.default_rng(entropy))

    # The finished searches of an interrupted call.
    outcomes: dict[int, SearchOutcome] = {}
    store, unwritten, written = None, list[int](), time.monotonic()
    done = f"of {len(seeds):,} searches are in '{checkpoint}'"
    if checkpoint is not None:
        work = {
            "seeds": digest([f"{seeds.shape} {seeds.dtype}".encode(), seeds]),
            **pair.identity(seeds),
            "domain": described(pair.domain),
            "options": described(search),
            "rng": digest([repr([s.bit_generator.state for s in streams]).encode()]),
        }
        store = Store(checkpoint, work, "checkpoint of searches")
        for key in store.keys():  # noqa: SIM118 - not a dict
            with store.open(key) as file:
                part, every = file.value("seeds", list), {*range(len(seeds))}
                fits = {*map(type, part)} <= {int} and len({*part} & every) == len(part)
                file.check(fits, "its seeds are not those of this search, each once")
                outcomes.update(zip(part, unpack(file), strict=True))
    if outcomes:
        announce(f"Resuming: {len(outcomes):,} {done}.", progress)

    waiting = [index for index in range(len(seeds)) if index not in outcomes]
    together = rows_within_memory(seeds.shape[1:], search.together)
    running: dict[int, _Running] = {}
    with progress_bar("searches", len(seeds), progress) as bar:
        bar.update(len(outcomes))
        try:
            while waiting or running:
                clock = time.perf_counter()
                while waiting and len(running) < together:
                    index = waiting.pop(0)
                    domain = pair.domain.near(seeds[index], search.max_distance)
                    steps = search.run(seeds[index], domain, streams[index])
                    running[index] = _Running(steps, next(steps))

                # Ask about the inputs of all searches at once, and hand each its answers.
                answers = pair.ask(np.concatenate([one.asked for one in running.values()]))
                row, ended = 0, {}
                for index, one in running.items():
                    count = len(one.asked)
                    part = answers.part(row, row + count)
                    row += count
                    one.queries += count
                    try:
                        one.asked = one.steps.send(part)
                    except StopIteration as end:
                        status = "already_deviates" if end.value.trace == () else "found"
                        ended[index] = status, end.value
                        continue
                    if search.max_queries is not None and one.queries >= search.max_queries:
                        ended[index] = "query_budget", None
                    elif one.seconds >= search.timeout:
                        ended[index] = "timeout", None
                seconds = time.perf_counter() - clock
                for one in running.values():
                    one.seconds += seconds / len(running)

                # Keep what has ended, and write it now and then.
                for index, (status, trigger) in ended.items():
                    one, deviation = running.pop(index), None
                    if trigger is not None:
                        x, answered, trace = trigger
                        deviation = Deviation(x, one.queries, one.seconds, answered, trace)
                    outcomes[index] = SearchOutcome(status, one.queries, one.seconds, deviation)
                    unwritten.append(index)
                bar.update(len(ended))
                if store is not None and time.monotonic() - written > _WRITE_EVERY:
                    _write(store, outcomes, unwritten)
                    unwritten, written = [], time.monotonic()
        except KeyboardInterrupt:
            if store is not None:
                announce(f"Stopped: {len(outcomes):,} {done}; the same call resumes.", progress)
            raise
        finally:
            if store is not None:
                _write(store, outcomes, unwritten)

    results = [outcomes[index] for index in range(len(seeds))]
    found = DeviationSet(results, seeds, truth, np.zeros((0, 2)), search.max_distance, features)
    return replace(found, **certainties(pair.ask(found.images))) if found.found.any() else found


def _checked(
    pair: ModelPair, seeds: np.ndarray | Dataset, search: SearchAlgorithm
) -> tuple[np.ndarray, ModelPair]:
    """Return the seeds as an array, and the pair with its domain; reject invalid seeds."""
    if not isinstance(pair, ModelPair):
        raise InvalidArgumentError(
            "Pass the models as one pair: find_deviations(ModelPair(original, compressed), seeds). "
            f"Received: {type(pair).__name__}"
        )
    seeds = seeds.x if isinstance(seeds, Dataset) else seeds
    x = dense(seeds) if hasattr(seeds, "iloc") else as_array(seeds)
    if x.ndim == 0:
        raise InputShapeError(f"Seeds must be an array of inputs. Received: {str(x)[:60]}")
    if len(x) == 0:
        raise InputShapeError("There are no seeds: pass at least one.")
    pair = pair.for_seeds(x)
    pair.domain.check_seeds(x)
    limit, is_integer = search.max_distance, x.dtype.kind in "iu"
    if limit is not None and isinstance(pair.domain, TextDomain):
        raise InvalidArgumentError(
            "max_distance limits the change of a value, and words have no values. Omit it."
        )
    if limit is not None:
        check_number("max_distance", limit, "[1, inf)" if is_integer else "(0, inf)")
    whole = isinstance(pair.domain, TableDomain) and x.dtype.kind != "f"
    return x.astype(np.float64) if whole else x, pair


def _warn_of_seeds(pair: ModelPair, seeds: np.ndarray, truth: np.ndarray | None) -> None:
    """Warn if the first 64 seeds do not seem to suit the models, or the models seem equal."""
    seeds = seeds[: max(MIN_SAMPLES, rows_within_memory(seeds.shape[1:], _MAX_SEEDS))]
    truth = None if truth is None else truth[: len(seeds)]
    answers = pair.ask(seeds)
    has_labels = not (answers.labels == NO_LABEL).any()
    if has_labels and isinstance(pair.domain, ImageDomain):
        pair.warn_of_scale(seeds, answers, truth)
    if isinstance(pair.domain, TextDomain):
        remedy = "Encode the words with the vocabulary that the models were trained with."
    else:
        is_image = isinstance(pair.domain, ImageDomain)
        scaling = "x.astype('float32') / 255" if is_image else "(x - mean) / std"
        remedy = f"Scale them as for training, for example with preprocess=lambda x: {scaling}."
        remedy = remedy if pair.preprocess is None else "Check preprocess, and the labels' order."
    if has_labels:
        # Ties are no labels, so that they are no disagreement.
        labels = np.where(answers.deviates[:, None], answers.labels, answers.labels[:, :1])
        warn_of_answers(labels, truth, ["The original model"], remedy)
    identical = np.abs(answers.original - answers.compressed).max() < LABEL_MARGIN
    if len(seeds) >= MIN_SAMPLES and identical:
        warn(
            f"Both models answered identically on all {len(seeds)} seeds tried; compression may "
            "have changed nothing. (TFLite's dynamic quantisation leaves kernels of fewer than "
            "1,024 values unchanged.)"
        )


def _write(store: Store, outcomes: dict[int, SearchOutcome], indices: list[int]) -> None:
    if indices:
        arrays = pack([outcomes[index] for index in indices])
        store.save(f"seed{indices[0]:08d}", {"seeds": indices}, arrays)
