"""`inspect`: the affinity of every unit with every hypothesis, in one pass over the data.

Sellam et al., "DeepBase: Deep Inspection of Neural Networks" (SIGMOD 2019). Each model runs once
per block of records for all its groups, hypotheses and measures, and each hypothesis is evaluated
once for all models. With `error=` a pair of unit and hypothesis stops when its confidence interval
is small enough, and reading stops with the last one. Most measures cost one product of matrices.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import check_count, check_name, check_number
from nnslicer_tf._environment import progress_bar
from nnslicer_tf.deepbase.hypotheses import Behaviour, HypothesisSet, fit_positions
from nnslicer_tf.deepbase.measures import find_measures
from nnslicer_tf.deepbase.measures.base import Measure
from nnslicer_tf.deepbase.scoring import Item, ScoreJob, Task
from nnslicer_tf.deepbase.units import Extractor, Units, find_groups
from nnslicer_tf.engine import Store
from nnslicer_tf.engine.engines import in_order, make_engine
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.data import DataLike, Samples, one_order

_FIRST_LOOK = 256  # records; with fewer, error estimates are too unreliable
_NEXT_LOOK = 1.25  # factor by which the number of records grows between looks

Model: TypeAlias = keras.Model | InstrumentedModel


def inspect(
    models: Model | Sequence[Model] | Mapping[str, Model],
    dataset: DataLike,
    hypotheses: Mapping[str, Behaviour | np.ndarray],
    measures: str | Measure | Iterable[str | Measure] = "correlation",
    units: str | Units | Iterable[str | Units] = "*",
    *,
    error: float | None = None,
    confidence: float = 0.95,
    block_size: int = 256,
    workers: int = 0,
    cache: str | os.PathLike | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure how closely units follow hypotheses.

    A hypothesis with one behaviour per record is compared with each channel's mean over positions,
    without padding; one with behaviours at positions, `(records, height, width)`, with the
    channel's value at each, padded or not (averaged over blocks if the operation is smaller).

    Args:
        models: One or more models of the same input; a mapping gives them names.
        dataset: Records `(records, *input_shape)`, in any form of `DataLike`.
        hypotheses: Name → array of behaviours, or function from a batch of records to these.
        measures: Measures, or names from `MEASURES`.
        units: Names of operations, patterns such as `"conv*"`, or `Units`.
        error: Stop each pair when its error is at most this; None: use all records. Arrays are
            read in a fixed random order; shuffle the records of iterables.
        confidence: Probability that a score over all such records is within its error.
        block_size: Records in one forward pass.
        workers: Number of Ray workers that compute affinities; 0 for this process.
        cache: Folder for units' behaviours, by weights, operation and records; reused only with the
            same `block_size`, and with `error` again set or again None.
        progress: Show a progress bar.

    Returns one row per pair: `model`, `group`, `unit` (channel; NA for a whole group),
    `hypothesis`, `measure`, `score` (NaN where not defined), `error`, `records` (behind the score).
    The weights of a probe have separate rows, with `.weight` appended to the measure. `attrs` has
    the number of `records` read and of each model's forward `passes`.

    Raises InvalidArgumentError for arguments out of range or unknown, and hypotheses of wrong
    length, constant, or unsuitable for a measure; InputShapeError if models take inputs of
    different shapes, or records have another; NonFiniteActivationError if records or behaviours are
    NaN or infinite; WorkerError if a worker fails repeatedly.
    """
    if error is not None:
        check_number("error", error, "(0, inf)")
    check_number("confidence", confidence, "(0, 1)")
    check_count("workers", workers, 0)
    check_count("block_size", block_size)
    if not isinstance(models, Mapping):
        members = [models] if isinstance(models, (keras.Model, InstrumentedModel)) else list(models)
        names = [m.model.name if isinstance(m, InstrumentedModel) else m.name for m in members]
        if len(set(names)) < len(names):
            raise InvalidArgumentError(f"Give the models different names. Received: {names}")
        models = dict(zip(names, members, strict=True))
    if not models:
        raise InvalidArgumentError("There are no models to inspect.")
    ims = {str(name): instrumented(model) for name, model in models.items()}
    shapes = {name: tuple(im.input_shapes.values()) for name, im in ims.items()}
    if len(set(shapes.values())) > 1:
        raise InputShapeError(f"All models must take inputs of the same shape. Received: {shapes}")
    measures = find_measures(measures)
    behaviours = HypothesisSet(hypotheses, any(measure.binary for measure in measures))
    groups = {name: find_groups(im, units) for name, im in ims.items()}
    columns = one_order(*(im.named_by(dataset).columns for im in ims.values()))
    samples = next(iter(ims.values())).with_columns(columns).samples(dataset)
    if samples.count is not None:
        behaviours.check_length(samples.count)
    if not isinstance(dataset, Iterator):  # which can be read only once
        behaviours.check_varies(samples.batches(block_size))
    # Its keys cover all that an array depends on. Compression is slower than a forward pass.
    store = None if cache is None else Store(cache, {}, "cache of behaviours", compress=False)

    # A task for each measure of each group; the first record tells which have positions.
    shuffled = error is not None and samples.count is not None
    blocks = _blocks(samples, block_size, shuffled)
    rows, x = next(blocks)
    kinds: dict[bool, tuple[str, ...]] = {False: (), True: ()}
    for name, values in behaviours.evaluate(x[:1], rows[:1]).items():
        kinds[values.ndim > 1] += (name,)
    tasks = [
        Task(
            model,
            group.name,
            need=(group.operation, by_position),
            indices=group.indices,
            positions=group.positions if by_position else None,
            hypotheses=names,
            measure=measure,
        )
        for model, members in groups.items()
        for by_position, names in kinds.items()
        if names
        for group in members
        for measure in measures
    ]
    extractors = {
        model: Extractor(im, [task.need for task in tasks if task.model == model], store)
        for model, im in ims.items()
    }

    # Read the data while a task needs more; the first block calibrates the measures.
    sizes: list[int] = []
    items = _items(itertools.chain([(rows, x)], blocks), tasks, behaviours, extractors, sizes)
    first = next(items)
    for task in tasks:
        task.calibration = task.measure.calibrate(task.block(first))
    engine = make_engine(workers, None)
    results = engine.map(ScoreJob(tasks), enumerate(itertools.chain([first], items)))
    records, look = 0, _FIRST_LOOK
    with progress_bar("Inspecting", samples.count, progress) as bar:
        for index, summaries in in_order(results):
            records += sizes[index]
            bar.update(sizes[index])
            running = [number for number in summaries if not tasks[number].finished]
            for number in running:
                tasks[number].add(summaries[number])
            if error is not None and records >= look:
                look = max(records + 1, int(records * _NEXT_LOOK))
                for number in running:
                    tasks[number].look(records, confidence, error, shuffled)
    for task in tasks:
        if not task.finished:
            task.look(records, confidence, None)

    frame = pd.concat([part for task in tasks for part in task.frames()], ignore_index=True)
    frame.attrs["records"] = sum(sizes)
    frame.attrs["passes"] = {model: e.passes for model, e in extractors.items()}
    return frame


def _items(
    blocks: Iterable[tuple[np.ndarray, Any]],
    tasks: Sequence[Task],
    behaviours: HypothesisSet,
    extractors: Mapping[str, Extractor],
    sizes: list[int],
) -> Iterator[Item]:
    """Yield blocks of behaviours until no task needs more; append their lengths to `sizes`."""
    for rows, x in blocks:
        running = {number: task for number, task in enumerate(tasks) if not task.finished}
        if not running:
            return
        kinds = {task.positions: task.hypotheses for task in running.values()}
        names = dict.fromkeys(name for kind in kinds.values() for name in kind)
        values = behaviours.evaluate(x, rows, names)
        hypotheses = {}
        for positions, kind in kinds.items():
            columns = [fit_positions(name, values[name], positions or ()) for name in kind]
            hypotheses[positions] = np.stack(columns, axis=-1)
        needs: dict[str, dict] = {}
        for task in running.values():
            needs.setdefault(task.model, {})[task.need] = None
        units = {
            (model, need): channels
            for model, keys in needs.items()
            for need, channels in extractors[model](x, list(keys), rows).items()
        }
        indices = sum(sizes) + np.arange(len(x))
        sizes.append(len(x))
        yield Item(indices, tuple(running), units, hypotheses)
    behaviours.check_length(sum(sizes))  # not known earlier for an iterable


def _blocks(samples: Samples, size: int, shuffled: bool) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield the indices of records and the records, in the order of the data or a random one."""
    if shuffled:
        x = samples.array()
        order = np.random.default_rng(0).permutation(len(x))
        parts = (order[start : start + size] for start in range(0, len(x), size))
        yield from ((rows, x[rows]) for rows in parts)
        return
    first = 0
    for block in samples.batches(size):
        yield np.arange(first, first + len(block)), block
        first += len(block)


def best_units(frame: pd.DataFrame, count: int = 3, measure: str = "correlation") -> pd.DataFrame:
    """Return, for each model and hypothesis, the `count` units with the largest |score|.

    `frame` is the result of `inspect`; `measure` must have a score for every unit.

    Raises InvalidArgumentError if the frame has no such scores, or the count is not 1 or more.
    """
    check_count("count", count)
    scores = unit_scores(frame, measure)
    order = scores["score"].abs().sort_values(ascending=False, kind="stable").index
    best = scores.loc[order].groupby(["model", "hypothesis"], sort=False).head(count)
    return best.sort_values(["model", "hypothesis"], kind="stable").reset_index(drop=True)


def unit_scores(frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return the rows of a frame with a measure's scores of single units."""
    if not {"model", "hypothesis", "measure", "unit", "score"} <= set(frame):
        raise InvalidArgumentError(f"frame must be a result of inspect. It has: {list(frame)}")
    check_name("measure", measure, frame["measure"].unique())
    scores = frame[(frame["measure"] == measure) & frame["unit"].notna()]
    if scores.empty:
        raise InvalidArgumentError(f"The frame has no {measure!r} scores of single units.")
    return scores.reset_index(drop=True)  # concatenated frames have repeated indices
