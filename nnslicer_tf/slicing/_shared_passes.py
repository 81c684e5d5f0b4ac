"""`SharedPasses`: masks of several searches, one for each sample, as one pass of the model.

Searches run in threads and know nothing of each other. One that asks waits until all others ask as
well, or have ended; so who shares a pass does not depend on how threads are scheduled. A pass of 16
samples costs a half to a third of theirs one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore, Condition
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf._environment import available_cores
from nnslicer_tf.instrument import Ablation
from nnslicer_tf.instrument.ablation import Rows


@dataclass(eq=False)
class _Question:
    place: int
    mask: np.ndarray  # (units,)
    rows: Rows  # of one sample
    score: tuple[np.ndarray, float] | None  # for slopes: weights, and the share of rivals
    answer: Any = None


@dataclass(frozen=True)
class Member:
    """What the search of a number takes for its `Ablation`."""

    passes: "SharedPasses"
    place: int

    @property
    def units(self) -> int:
        return self.passes.model.units

    def outputs(self, mask: np.ndarray, rows: Rows) -> np.ndarray:
        return self.passes.ask(_Question(self.place, mask, rows, None))

    def slopes(self, mask: np.ndarray, rows: Rows, weights: np.ndarray, rivals: float) -> Any:
        return self.passes.ask(_Question(self.place, mask, rows, (weights, rivals)))


class SharedPasses:
    """Runs the masks of a number of searches; see above.

    Masks of several rows, of which a pass is large enough by itself, run alone.
    """

    def __init__(self, model: Ablation, searches: int) -> None:
        self.model = model
        self._running = searches
        self._asked: list[_Question] = []
        self._changed = Condition()
        self._is_stopped = False
        self._alone = BoundedSemaphore(available_cores())

    def ask(self, question: _Question) -> Any:
        """Return the values of a question's mask, or its values and slopes."""
        if question.mask.ndim > 1 or question.rows.samples * question.rows.donors > 1:
            with self._alone:
                if question.score is None:
                    return self.model.outputs(question.mask, question.rows)
                return self.model.slopes(question.mask, question.rows, *question.score)
        with self._changed:
            self._asked.append(question)
            self._run_if_all_ask()
            self._changed.wait_for(lambda: question.answer is not None or self._is_stopped)
        if question.answer is None:
            raise RuntimeError("Another search failed, or was interrupted.")
        if isinstance(question.answer, Exception):
            raise question.answer
        return question.answer

    def leave(self) -> None:
        """Note that a search has ended."""
        with self._changed:
            self._running -= 1
            self._run_if_all_ask()

    def stop(self) -> None:
        """Let all searches fail that ask."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _run_if_all_ask(self) -> None:
        if not self._asked or len(self._asked) < self._running or self._is_stopped:
            return
        asked, self._asked = sorted(self._asked, key=lambda question: question.place), []
        for with_slopes in (False, True):
            chosen = [q for q in asked if (q.score is not None) == with_slopes]
            try:
                answers = self._answers(chosen) if chosen else []
            except Exception as error:  # of the backend, such as too little memory
                answers = [error] * len(chosen)
            for question, answer in zip(chosen, answers, strict=True):
                question.answer = answer
        self._changed.notify_all()

    def _answers(self, asked: Sequence[_Question]) -> list[Any]:
        """Run questions of one kind in one pass."""
        first = asked[0].rows
        masks = np.stack([question.mask for question in asked])
        inputs = [ops.concatenate(own) for own in zip(*(q.rows.inputs for q in asked), strict=True)]
        rows = Rows(inputs, first.base, first.constants, len(asked), 1)
        if asked[0].score is None:
            values = self.model.outputs(masks, rows)
            return [values[i : i + 1] for i in range(len(asked))]
        weights = np.stack([q.score[0] for q in asked if q.score is not None])
        values, slopes = self.model.slopes(masks, rows, weights, asked[0].score[1])
        return [(values[i : i + 1], slopes[i]) for i in range(len(asked))]
