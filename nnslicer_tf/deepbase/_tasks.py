"""One measure on one group of units: its sums, its scores, and when they are certain.

Does not import Keras, so that workers start fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf.deepbase.measures import Block, Measure, Scores
from nnslicer_tf.engine import Job
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nnslicer_tf.deepbase._extract import Need  # loads Keras

_CHANCE = 3.0  # what never occurs in n records is rarer than 3 / n, with 95 % confidence


@dataclass(frozen=True)
class Item:
    """One block of records on its way to the measures.

    Attributes:
        first: Number of records read before.
        records: Number of records.
        tasks: Numbers of the tasks that still need it.
        units: Key → behaviours `(records, positions, channels)`.
        hypotheses: A task's `positions` → behaviours `(records, positions, hypotheses)`.
    """

    first: int
    records: int
    tasks: Sequence[int]
    units: "dict[tuple[str, Need], np.ndarray]"
    hypotheses: dict[tuple, np.ndarray]


@dataclass
class Task:
    """A measure between the units of a group and the hypotheses of one kind.

    Attributes:
        model: Name of the model.
        group: Name of the group.
        key: Which behaviours of `Item.units` are the group's.
        indices: The group's channels.
        positions: Which behaviours of `Item.hypotheses` are compared with them: whether they
            are by position, and if so the shape of the positions.
        hypotheses: Their names.
        measure: The measure.
        calibration: The measure's calibration from the first block.
        scores: Scores so far, frozen for pairs that are certain; set by the first `look`, as
            are `certain` and `records`.
        certain: Which pairs are certain, `(units or 1, hypotheses)`.
        records: Number of records behind each pair's score, of the same shape.
    """

    model: str
    group: str
    key: "tuple[str, Need]"
    indices: np.ndarray
    positions: tuple
    hypotheses: tuple[str, ...]
    measure: Measure
    calibration: Any = None
    scores: Scores = field(init=False, repr=False)
    certain: np.ndarray = field(init=False, repr=False)
    records: np.ndarray = field(init=False, repr=False)
    _looked: bool = field(default=False, repr=False)
    _total: Any = field(default=None, repr=False)
    _close: np.ndarray = field(init=False, repr=False)

    @property
    def finished(self) -> bool:
        """Whether all pairs are certain."""
        return self._looked and bool(self.certain.all())

    def block(self, item: Item) -> Block:
        """Return what the task reads of an item."""
        return Block(
            item.units[self.key][:, :, self.indices], item.hypotheses[self.positions], item.first
        )

    def calibrate(self, item: Item) -> None:
        """Calibrate the measure on the first block."""
        self.calibration = self.measure.calibrate(self.block(item))

    def add(self, part: Any) -> None:
        """Merge the summary of one more block."""
        self._total = part if self._total is None else self.measure.merge(self._total, part)

    def look(
        self, records: int, confidence: float, asked: float | None, shuffled: bool = False
    ) -> None:
        """Score what was merged so far, and freeze the pairs that are certain.

        A pair is certain when at two looks in a row its error is at most `asked` and its
        score has changed by no more. A pair without a score, because its unit was constant, is
        given up once records on which the unit differs are, with 95 % confidence, rarer than
        `asked`. This requires that records come in random order, and that the hypothesis has
        varied, which it does sooner or later.

        Args:
            records: Records merged so far.
            confidence: Confidence level of the errors.
            asked: The error asked for; None freezes nothing.
            shuffled: Whether the records come in random order.
        """
        new = self.measure.result(self._total, self.calibration, confidence)
        if not self._looked:
            shape = new.score.shape
            if shape not in ((1, len(self.hypotheses)), (len(self.indices), len(self.hypotheses))):
                raise InvalidArgumentError(
                    f"Measure '{self.measure.name}' must give scores ({len(self.indices)} or 1, "
                    f"{len(self.hypotheses)}). Received: {shape}"
                )
            self.certain, self._close = np.zeros(shape, bool), np.zeros(shape, bool)
            self.records = np.full(shape, records)
            self.scores, self._looked = new, True
            moved = np.full(shape, np.inf)
        else:
            moved = np.abs(new.score - self.scores.score)
            self._update(new, records)
        if asked is not None:
            close = self.scores.error <= asked
            undefined = np.isnan(self.scores.score)
            hopeless = undefined & ~undefined.all(axis=0) & (_CHANCE / records <= asked)
            self.certain |= (close & self._close & (moved <= asked)) | (hopeless & shuffled)
            self._close = close

    def _update(self, new: Scores, records: int) -> None:
        """Replace the scores of the pairs that are not certain."""
        old, kept = self.scores, self.certain
        weights = new.weights
        if (
            weights is not None and old.weights is not None
        ):  # here a hypothesis is certain as a whole
            weights = np.where(kept, old.weights, weights)
        self.scores = Scores(
            np.where(kept, old.score, new.score), np.where(kept, old.error, new.error), weights
        )
        self.records = np.where(kept, self.records, records)


@dataclass(frozen=True)
class ScoreJob(Job):
    """Summarises a block for all tasks that need it, in this process or on workers.

    Attributes:
        tasks: The tasks, by number.
    """

    tasks: Sequence[Task]

    def __call__(self, item: Item) -> dict[int, Any]:
        """Return task number → summary."""
        found = {}
        for number in item.tasks:
            task = self.tasks[number]
            found[number] = task.measure.summarise(task.block(item), task.calibration)
        return found
