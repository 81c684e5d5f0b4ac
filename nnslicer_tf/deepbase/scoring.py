"""One measure on one group of units: its sums, its scores, and when they are certain.

Does not import Keras, so that workers start fast.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf.deepbase.measures.base import Block, Measure, Scores
from nnslicer_tf.engine import Job
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd

_CHANCE = 3.0  # what never occurs in n records is rarer than 3 / n, with 95 % confidence


@dataclass(frozen=True)
class Item:
    """One block of records on its way to the measures."""

    indices: np.ndarray  # numbers of its records in reading order
    tasks: Sequence[int]  # numbers of the tasks that still need it
    # A task's `model` and `need` → behaviours (records, positions, channels).
    units: dict[tuple, np.ndarray]
    # A task's `positions` → behaviours (records, positions, hypotheses).
    hypotheses: dict[tuple[int, ...] | None, np.ndarray]


@dataclass
class Task:
    """A measure between the units of a group and the hypotheses of one kind."""

    model: str
    group: str
    need: tuple[str, bool]  # the operation, and whether it is read at every position
    indices: np.ndarray  # the group's channels
    positions: tuple[int, ...] | None  # of the operation; None for behaviours per record
    hypotheses: tuple[str, ...]
    measure: Measure
    calibration: Any = None  # by the first block
    scores: Scores | None = field(default=None, repr=False)
    # Whether a score is frozen, and its number of records: (units or 1, hypotheses).
    certain: np.ndarray = field(init=False, repr=False)
    records: np.ndarray = field(init=False, repr=False)
    _total: Any = field(default=None, repr=False)
    _close: np.ndarray = field(init=False, repr=False)

    @property
    def finished(self) -> bool:
        """Whether all pairs are certain."""
        return self.scores is not None and bool(self.certain.all())

    def block(self, item: Item) -> Block:
        """Return the part of an item that the task reads."""
        units = item.units[self.model, self.need][:, :, self.indices]
        return Block(units, item.hypotheses[self.positions], item.indices)

    def add(self, part: Any) -> None:
        """Merge the summary of one more block."""
        self._total = part if self._total is None else self.measure.merge(self._total, part)

    def look(
        self, records: int, confidence: float, limit: float | None, shuffled: bool = False
    ) -> None:
        """Score the `records` merged so far, and freeze the certain pairs if there is a `limit`.

        A pair is certain when at two looks in a row its error is at most `limit` and its score has
        changed by no more. A constant unit's is given up once records on which it differs are, with
        95 % confidence, rarer than `limit`, if records are in random order and a hypothesis varies.
        """
        new, old = self.measure.result(self._total, self.calibration, confidence), self.scores
        shape = new.score.shape
        if old is None:
            if shape not in ((1, len(self.hypotheses)), (len(self.indices), len(self.hypotheses))):
                raise InvalidArgumentError(
                    f"Measure '{self.measure.name}' must give scores ({len(self.indices)} or 1, "
                    f"{len(self.hypotheses)}). Received: {shape}"
                )
            self.certain, self._close = np.zeros(shape, bool), np.zeros(shape, bool)
            self.scores, self.records = new, np.full(shape, records)
            change = np.full(shape, np.inf)
        else:
            change = np.abs(new.score - old.score)
            weights = new.weights
            if weights is not None and old.weights is not None:  # certain as whole hypotheses
                weights = np.where(self.certain, old.weights, weights)
            pairs = (old.score, new.score), (old.error, new.error)
            score, error = (np.where(self.certain, *pair) for pair in pairs)
            self.scores = Scores(score, error, weights)
            self.records = np.where(self.certain, self.records, records)
        if limit is not None:
            close = self.scores.error <= limit
            undefined = np.isnan(self.scores.score)
            hopeless = undefined & ~undefined.all(axis=0) & (_CHANCE / records <= limit)
            self.certain |= (close & self._close & (change <= limit)) | (hopeless & shuffled)
            self._close = close

    def frames(self) -> "Iterator[pd.DataFrame]":
        """Yield the table of the scores and, for a probe, that of its weights."""
        import pandas as pd

        assert self.scores is not None
        score, error, weights = self.scores.score, self.scores.error, self.scores.weights
        parts = [(self.measure.name, score, error)]
        if weights is not None:
            parts.append((f"{self.measure.name}.weight", weights, np.full(weights.shape, np.nan)))
        for measure, values, errors in parts:
            # One row for several units, or beside weights, is the score of the whole group.
            many = len(self.indices) > 1 or weights is not None
            units = [pd.NA] if values is score and len(score) == 1 and many else self.indices
            columns = {
                "model": self.model,
                "group": self.group,
                "unit": pd.array(units, dtype="Int64").repeat(len(self.hypotheses)),
                "hypothesis": np.tile(np.array(self.hypotheses, object), len(values)),
                "measure": measure,
                "score": values.ravel(),
                "error": errors.ravel(),
                "records": np.broadcast_to(self.records, values.shape).ravel(),
            }
            yield pd.DataFrame(columns)


@dataclass(frozen=True)
class ScoreJob(Job):
    """Summarises a block for all tasks that need it, in this process or on workers."""

    tasks: Sequence[Task]

    def __call__(self, item: Item) -> dict[int, Any]:
        """Return task number → summary."""
        tasks = {number: self.tasks[number] for number in item.tasks}
        return {n: t.measure.summarise(t.block(item), t.calibration) for n, t in tasks.items()}
