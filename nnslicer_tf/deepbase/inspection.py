"""`inspect`: the affinity of every unit with every hypothesis, in one pass over the data.

Sellam et al., "DeepBase: Deep Inspection of Neural Networks" (SIGMOD 2019). The caller
declares models, units, hypotheses and measures; the computation is planned here:

- one forward pass of each model serves all its groups, hypotheses and measures; a block of
  records is read once for all models, and each hypothesis evaluated once for all of them;
- behaviours stream in blocks: memory does not grow with the data;
- with `error=`, every pair of unit and hypothesis stops when its confidence interval is
  small enough; a model is run, and data is read, only while a pair still needs it. Records are
  then read in random order, if possible, as the first ones must be representative;
- with `cache=`, behaviours of units are kept on disk for further inspections;
- with `workers=`, the affinities are computed on Ray workers in parallel to the forward passes.

Cost: a forward pass over the records used, and one matrix product of units and hypotheses
for most measures. Memory: a block of behaviours, and the measures' sums.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf.deepbase._evaluate import HypothesisSet, fit_positions
from nnslicer_tf.deepbase._extract import Extractor, Need
from nnslicer_tf.deepbase._tasks import Item, ScoreJob, Task
from nnslicer_tf.deepbase.cache import BehaviourCache
from nnslicer_tf.deepbase.hypotheses import Behaviour
from nnslicer_tf.deepbase.measures import Measure, find_measures
from nnslicer_tf.deepbase.units import UnitGroup, Units, find_groups
from nnslicer_tf.engine import in_order, make_engine
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, Samples, SeveralSamples
from nnslicer_tf.instrument.data import DataLike, check_batch_size

if TYPE_CHECKING:
    import pandas as pd

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
    cache: str | os.PathLike | BehaviourCache | None = None,
    progress: bool = True,
) -> "pd.DataFrame":
    """Measure how closely units follow hypotheses.

    A hypothesis with one behaviour per record is compared with each channel's mean over its
    positions; one with behaviours at positions, `(records, height, width)`, with the
    channel's value at each of them (averaged over blocks if the operation is smaller).
    Padding is excluded from means over positions; values at padded positions count like any other.

    Args:
        models: One or more models of the same input; a mapping gives them names.
        dataset: Records `(records, *input_shape)`, an array, a `tf.data.Dataset` or another
            iterable of batches.
        hypotheses: Name → function from a batch of records to behaviours, or array of the
            behaviours of all records.
        measures: Measures, or names from `MEASURES`.
        units: Names of operations, patterns such as `"conv*"`, or `Units`.
        error: Stop each pair when its error is at most this; None: use all records. Arrays are
            read in a fixed random order. An iterable is read in its own order: its records must
            be shuffled, not sorted by class.
        confidence: Probability that a score over all such records is within its error.
        block_size: Records in one forward pass.
        workers: Number of Ray workers that compute affinities; 0 for this process.
        cache: Folder, or `BehaviourCache`, in which behaviours of units are kept; they are reused
            only with the same `block_size`, and if `error` is again given, or again not.
        progress: Show a progress bar.

    Returns:
        One row per pair: `model`, `group`, `unit` (channel; NA for the score of a whole group),
        `hypothesis`, `measure`, `score` (NaN where not defined), `error`, `records` (behind the
        score). The weights of a probe have separate rows, with `.weight` appended to the
        measure. `attrs` has the number of `records` read and of forward `passes` of each model.

    Raises:
        InvalidArgumentError: if hypotheses have the wrong length, are constant, or do not
            suit a measure; for unknown units or measures; for arguments out of range.
        InputShapeError: if models take inputs of different shapes, or records have another.
        NonFiniteActivationError: if records or behaviours are NaN or infinite.
        WorkerError: if a worker fails repeatedly.
    """
    ims = _name_models(models)
    measures = find_measures(measures)
    behaviours = HypothesisSet(hypotheses, any(measure.binary for measure in measures))
    groups = {name: find_groups(im, units) for name, im in ims.items()}
    _check_range(error, confidence, workers)
    im = next(iter(ims.values()))
    samples = im.samples(dataset)
    check_batch_size(block_size)
    if samples.count is not None:
        behaviours.check_length(samples.count)
    if not isinstance(dataset, Iterator):  # which can be read only once
        behaviours.check_varies(samples.batches(block_size))
    shuffled = error is not None and samples.count is not None
    if cache is not None and not isinstance(cache, BehaviourCache):
        cache = BehaviourCache(cache)

    stream = _Stream(ims, groups, behaviours, measures, cache)
    items = stream.items(_blocks(samples, block_size, shuffled))
    first = next(items)  # calibrates the measures
    for task in stream.tasks:
        task.calibrate(first)
    engine = make_engine(workers, None)
    results = engine.map(ScoreJob(stream.tasks), enumerate(itertools.chain([first], items)))
    records, look = 0, _FIRST_LOOK
    with tqdm(total=samples.count, desc="Inspecting", disable=not progress, leave=False) as bar:
        for index, summaries in in_order(results):
            records += stream.sizes[index]
            bar.update(stream.sizes[index])
            running = [number for number in summaries if not stream.tasks[number].finished]
            for number in running:
                stream.tasks[number].add(summaries[number])
            if error is not None and records >= look:
                look = max(records + 1, int(records * _NEXT_LOOK))
                for number in running:
                    stream.tasks[number].look(records, confidence, error, shuffled)
    for task in stream.tasks:
        if not task.finished:
            task.look(records, confidence, None)
    return _frame(stream)


class _Stream:
    """Reads records, runs models and hypotheses, and makes the blocks to score.

    Attributes:
        tasks: All measures of all groups; known after the first item.
        sizes: Records of each block made so far.
    """

    def __init__(
        self,
        ims: Mapping[str, InstrumentedModel],
        groups: Mapping[str, list[UnitGroup]],
        behaviours: HypothesisSet,
        measures: Sequence[Measure],
        cache: BehaviourCache | None,
    ) -> None:
        self.tasks: list[Task] = []
        self.sizes: list[int] = []
        self.extractors: dict[str, Extractor] = {}
        self._ims = ims
        self._groups = groups
        self._behaviours = behaviours
        self._measures = measures
        self._cache = cache

    def items(self, blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[Item]:
        """Yield blocks until no task needs more.

        Args:
            blocks: Indices of records in the data set, and the records.

        Raises:
            InvalidArgumentError: at the end, if a hypothesis has more behaviours than records.
        """
        first = 0
        for rows, x in blocks:
            if not self.tasks:
                self._plan(self._behaviours.evaluate(x[:1], rows[:1]))
            wanted = [n for n, task in enumerate(self.tasks) if not task.finished]
            if not wanted:
                return
            kinds = {self.tasks[n].positions: self.tasks[n] for n in wanted}
            names = dict.fromkeys(name for task in kinds.values() for name in task.hypotheses)
            values = self._behaviours.evaluate(x, rows, tuple(names))
            hypotheses = {positions: _columns(values, task) for positions, task in kinds.items()}
            units = self._units(x, rows, wanted)
            self.sizes.append(len(x))
            yield Item(first, len(x), wanted, units, hypotheses)
            first += len(x)
        self._behaviours.check_length(first)  # not known earlier for an iterable

    def _plan(self, sample: Mapping[str, np.ndarray]) -> None:
        """Make the tasks and extractors, from the behaviours of one record."""
        per_record = tuple(name for name, values in sample.items() if values.ndim == 1)
        by_position = tuple(name for name, values in sample.items() if values.ndim > 1)
        for model, groups in self._groups.items():
            for names, spread in ((per_record, False), (by_position, True)):
                for group in groups if names else ():
                    positions = (spread, *group.positions) if spread else (spread,)
                    for name in by_position if spread else ():
                        fit_positions(name, sample[name], group.positions)
                    key = (model, Need(group.operation, spread))
                    self.tasks += [
                        Task(model, group.name, key, group.indices, positions, names, measure)
                        for measure in self._measures
                    ]
            needs = {task.key[1]: None for task in self.tasks if task.model == model}
            self.extractors[model] = Extractor(self._ims[model], tuple(needs), self._cache)

    def _units(
        self, x: np.ndarray, rows: np.ndarray, wanted: Sequence[int]
    ) -> dict[tuple[str, Need], np.ndarray]:
        """Return the behaviours that the tasks need, from one pass of each model."""
        keys = dict.fromkeys(self.tasks[n].key for n in wanted)
        found: dict[tuple[str, Need], np.ndarray] = {}
        for model, extractor in self.extractors.items():
            needs = [need for name, need in keys if name == model]
            if needs:
                values = extractor(x, needs, rows)
                found |= {(model, need): values[need] for need in needs}
        return found


def _blocks(
    samples: Samples | SeveralSamples, size: int, shuffled: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the indices of records and the records, in the order of the data or a random one."""
    if shuffled:
        x: Any = samples.inputs if isinstance(samples, SeveralSamples) else samples.array()
        order = np.random.default_rng(0).permutation(len(x))
        for start in range(0, len(x), size):
            rows = order[start : start + size]
            yield rows, x[rows]
        return
    first = 0
    for block in samples.batches(size):
        yield np.arange(first, first + len(block)), block
        first += len(block)


def _columns(values: Mapping[str, np.ndarray], task: Task) -> np.ndarray:
    """Return the behaviours of a task's hypotheses, `(records, positions, hypotheses)`."""
    spread, *positions = task.positions
    if not spread:
        return np.stack([values[name] for name in task.hypotheses], axis=-1)[:, None]
    columns = [fit_positions(name, values[name], tuple(positions)) for name in task.hypotheses]
    return np.stack(columns, axis=-1)


def _frame(stream: _Stream) -> "pd.DataFrame":
    """Return all scores as one table."""
    import pandas as pd

    frame = pd.concat([rows for task in stream.tasks for rows in _rows(task)], ignore_index=True)
    frame.attrs["records"] = sum(stream.sizes)
    frame.attrs["passes"] = {name: e.passes for name, e in stream.extractors.items()}
    return frame


def _rows(task: Task) -> Iterator["pd.DataFrame"]:
    scores = task.scores
    many = len(task.indices) > 1 or scores.weights is not None
    whole_group = len(scores.score) == 1 and many
    units = None if whole_group else task.indices
    yield _table(task, units, task.measure.name, scores.score, scores.error)
    if scores.weights is not None:
        nothing = np.full(scores.weights.shape, np.nan)
        name = f"{task.measure.name}.weight"
        yield _table(task, task.indices, name, scores.weights, nothing)


def _table(
    task: Task, units: np.ndarray | None, measure: str, score: np.ndarray, error: np.ndarray
) -> "pd.DataFrame":
    import pandas as pd

    count = len(task.hypotheses)
    unit = pd.array([pd.NA] if units is None else units, dtype="Int64").repeat(count)
    columns = {
        "model": task.model,
        "group": task.group,
        "unit": unit,
        "hypothesis": np.tile(np.array(task.hypotheses, object), len(score)),
        "measure": measure,
        "score": score.ravel(),
        "error": error.ravel(),
        "records": np.broadcast_to(task.records, score.shape).ravel(),
    }
    return pd.DataFrame(columns)


def _name_models(models: Model | Sequence[Model] | Mapping[str, Model]) -> dict:
    if isinstance(models, (keras.Model, InstrumentedModel)):
        models = [models]
    if not isinstance(models, Mapping):
        listed = list(models)
        names = [m.model.name if isinstance(m, InstrumentedModel) else m.name for m in listed]
        if len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"Models must have different names: pass a mapping. Received: {names}"
            )
        models = dict(zip(names, listed, strict=True))
    if not models:
        raise InvalidArgumentError("There are no models to inspect.")
    ims = {
        str(name): m if isinstance(m, InstrumentedModel) else InstrumentedModel(m)
        for name, m in models.items()
    }
    shapes = {name: tuple(im.input_shapes.values()) for name, im in ims.items()}
    if len(set(shapes.values())) > 1:
        raise InputShapeError(f"All models must take inputs of the same shape. Received: {shapes}")
    return ims


def _check_range(error: float | None, confidence: float, workers: int) -> None:
    if error is not None and not error > 0:
        raise InvalidArgumentError(f"error must be above 0, or None. Received: {error!r}")
    if not 0 < confidence < 1:
        raise InvalidArgumentError(f"confidence must be between 0 and 1. Received: {confidence!r}")
    if not isinstance(workers, int) or workers < 0:
        raise InvalidArgumentError(f"workers must be 0 or more. Received: {workers!r}")
