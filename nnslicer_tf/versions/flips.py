"""For one flipped answer: the fewest changes of weights that made it, with a certificate."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import as_generator, counted, names_in_order
from nnslicer_tf._environment import available_cores, track
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.slicing.search import smallest_count
from nnslicer_tf.versions.between import PATH, Between, versions_of

_ROUNDS = 3
_SMALL = 64
_PRECISION = 0.01  # of a size that bisection finds
_DRAWS = 5  # of as many random changes


@dataclass(eq=False, repr=False)
class FlipCauses(ShownAsTable):
    """For each sample that two versions answer differently, the fewest changes that did it.

    Attributes:
        between: The two versions, and what is counted.
        samples: Index of each flipped sample among those passed, `(flips,)`.
        units: For each flip, the indices of its changes, the most effective first.
        effects: For each flip, their effects on the margin of the new answer over the old one.
        certificate: Column → one value per flip, measured by running the models: "old answer",
            "new answer", and "margin", the new version's logit of its answer less that of the old
            one; "size" and "share" of all changed units; "enough", whether the old model with
            these changes gives the new answer, and "needed", whether the new model without them
            gives the old answer; "margin with", "margin without" of these two models; "random" and
            "largest", the share of both that as many changes pass, drawn at random (a mean over
            draws) or largest in size; "runner-up", the new version's second class other than the
            old answer, and "runner-up given", whether as many changes chosen for it make the old
            model give it; "passes", forward passes.
    """

    between: Between
    samples: np.ndarray
    units: Sequence[np.ndarray]
    effects: Sequence[np.ndarray]
    certificate: dict[str, np.ndarray]

    @property
    def level(self) -> str:
        """What is counted: "weight", "channel" or "layer"."""
        return self.between.level

    def __len__(self) -> int:
        return len(self.samples)

    def to_frame(self) -> pd.DataFrame:
        """Return the certificate, with one row per flip."""
        return pd.DataFrame({"sample": self.samples, **self.certificate})

    def changes(self, flip: int = 0) -> pd.DataFrame:
        """Return the changes of a flip: name of the variable or layer, index, effect."""
        flip = self._place(flip)
        return self.between.table(self.units[flip], effect=self.effects[flip])

    def with_changes(self, flip: int = 0) -> keras.Model:
        """Return the old model with only the changes of a flip."""
        return self.between.model(self.between.active(self.units[self._place(flip)]))

    def without_changes(self, flip: int = 0) -> keras.Model:
        """Return the new model without the changes of a flip."""
        return self.between.model(1 - self.between.active(self.units[self._place(flip)]))

    def _place(self, flip: int) -> int:
        if not -len(self) <= flip < len(self):
            samples = np.asarray(self.samples).tolist()
            raise InvalidArgumentError(f"There are {len(self)} flips, of the samples {samples}.")
        return flip

    def summary(self, flip: int = 0, classes: Sequence[str] = ()) -> str:
        """Return the certificate of a flip in words; `classes` are the classes' names."""
        flip, count = self._place(flip), self.between.new.classes.count
        classes = names_in_order("classes", classes, count)
        row = {name: column[flip] for name, column in self.certificate.items()}

        def named(label: int) -> str:
            return classes[label] if label < len(classes) else f"class {label}"

        old, new = named(int(row["old answer"])), named(int(row["new answer"]))
        size = counted(int(row["size"]), f"changed {self.level}")
        lines = [
            f"Sample {self.samples[flip]}: {old} became {new}, with a margin of "
            f"{row['margin']:.3g} between the logits."
        ]
        if row["share"] == 1:
            lines.append("No set smaller than all changes was found; all together make every flip.")
            return "\n".join(lines)
        lines.append(
            f"{size} of {self.between.units:,} ({row['share']:.2%}) caused it: the old model with "
            f"them alone answers {new}, and the new model without them {old}."
        )
        lines.append(
            f"As many random changes do both in {100 * row['random']:.0f} % of the draws; as "
            f"many of the largest changes {'do' if row['largest'] == 1 else 'do not'}."
        )
        if row["runner-up given"]:
            lines.append(
                f"As many changes also suffice for {named(int(row['runner-up']))}: this set is not "
                "specific to the new answer."
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        share = self.certificate["share"]
        return (
            f"FlipCauses({counted(len(self), 'flip')}, {(share < 1).sum()} by a part of the "
            f"changes, median {np.median(share):.2%} of {self.between.units:,} changed "
            f"{self.level}s)"
        )


def explain_flips(
    old: ModelLike,
    new: ModelLike,
    x: DataLike,
    *,
    level: str = "weight",
    output: str | None = None,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> FlipCauses:
    """Find the fewest changes between two versions that made each flipped answer.

    A set of changes is certified if the old model with them alone gives the new answer, and the new
    model without them gives the old answer. Changes are ranked by their effect on the difference
    of the two logits (and of others near them), a mean of derivatives on the straight way between
    the versions' weights; the smallest certified share of the ranking is found by bisection. Then
    effects are estimated again with these changes, and ranked again. Cost: 100 to 150 passes.

    Args:
        old: The old version, a Keras or instrumented classifier.
        new: The new version, of the same architecture, or a LiteRT file, as for `compare`.
        x: Samples in any form of `DataLike`; those that both versions answer alike are left out.
        level: What is counted: "weight" (entries of all variables), "channel" (all weights of an
            output channel of a layer) or "layer".
        output: Name of the output that is explained; needed if there are several.
        rng: Seed or generator of the random changes to which they are compared.
        progress: Whether to show progress.

    Raises InvalidArgumentError if no answer differs, the versions differ in architecture, or the
    output has no classes that exclude each other; InputShapeError, InputRangeError or
    NonFiniteActivationError for bad samples.
    """
    generator = as_generator(rng)
    between = Between(*versions_of(old, new, x, output), level)
    samples = between.new.check(x)
    between.check(samples)
    before, after = between.answers(0.0, samples), between.answers(1.0, samples)
    flips = np.flatnonzero(before != after)
    if not len(flips):
        raise InvalidArgumentError(
            f"The versions give the same answer for all {counted(len(samples), 'sample')}: there "
            "is no flip to explain. Pass samples from `versions.compare`."
        )
    draws = [generator.permuted(np.arange(between.units)) for _ in range(_DRAWS)]

    def search(index: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        return _fewest(between, samples[index : index + 1], before[index], after[index], draws)

    with ThreadPoolExecutor(available_cores()) as pool:
        found = list(track(pool.map(search, flips), "Explaining flips", len(flips), progress))
    certificate = {key: np.array([row[key] for *_, row in found]) for key in found[0][2]}
    units, effects = [one for one, *_ in found], [one for _, one, _ in found]
    return FlipCauses(between, flips, units, effects, certificate)


def _fewest(
    between: Between, x: Any, before: int, after: int, draws: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return the fewest changes of one flip that were found, their effects, and the certificate."""
    rows, contrast, passes = between.rows(x), between.contrast(after, before), 0

    def tested(units: np.ndarray) -> tuple[bool, bool, float, float]:
        """Return whether changes are enough and needed, and the margins of the two models."""
        nonlocal passes
        passes += 2
        active = between.active(units)
        values = [between.logits(one, rows) for one in (active, 1 - active)]
        answers = [int(between.new.classes.from_logits(value)[0]) for value in values]
        margins = [float(value.reshape(-1) @ contrast) for value in values]
        return answers[0] == after, answers[1] == before, margins[0], margins[1]

    def is_certified(units: np.ndarray, count: int | None = None) -> bool:
        return all(tested(units[:count])[:2])

    def effects_at(active: Any, share: float, label: int) -> np.ndarray:
        """Return the effects on a new answer at a model, near the old version or the new one.

        Half of the score is the margin of the new answer over the old one. The other half also
        knows the other classes: near the old version it is the new answer's lead over all others,
        near the new version the lead of all others over the old answer.
        """
        nonlocal passes
        passes += 4
        logits = between.logits(active, rows)
        lead, lag = between.lead(logits, label), between.lead(logits, before)
        score = (between.contrast(label, before) + (1 - share) * lead - share * lag) / 2
        return between.effects(active, rows, score)

    def on_the_way(label: int) -> np.ndarray:
        return np.mean([effects_at(share, share, label) for share in PATH], axis=0)

    # Bisection on the ranking. Then effects are estimated again at the model whose margin is nearer
    # to 0, which decides the size, and changes are ranked again.
    effects = on_the_way(after)
    best, chosen = np.arange(between.units), effects
    for _ in range(_ROUNDS):
        order = np.argsort(-effects, kind="stable")
        # The first certified size of 1, 2, 4, …; more changes may give a third class instead. As
        # long as no set was found, changes that seem to harm may be needed against such a class.
        found = len(best) < between.units
        most, low, high = int((effects > 0).sum()) if found else between.units, 0, 1
        while high < most and not is_certified(order, high):
            low, high = high, min(2 * high, most)
        if high >= most and not is_certified(order, most):
            break
        size = smallest_count(low, high, partial(is_certified, order), _PRECISION)
        if size < len(best):
            best, chosen = order[:size], effects
        *_, margin_with, margin_without = tested(best)
        is_first = abs(margin_with) < abs(margin_without)
        nearer = between.active(best) if is_first else 1 - between.active(best)
        effects = (effects + effects_at(nearer, float(not is_first), after)) / 2

    # Of few changes, single ones are left out while both answers stay.
    shrinks = len(best) <= _SMALL
    while shrinks:
        shrinks = False
        for unit in best[::-1]:
            without = best[best != unit]
            if len(without) and is_certified(without):
                best, shrinks = without, True

    # The certificate: both models, random and largest changes, and the runner-up.
    size = len(best)
    enough, needed, margin_with, margin_without = tested(best)
    by_size = np.argsort(-between.sizes, kind="stable")[:size]
    scores = between.new.classes.scores(between.logits(1.0, rows))[0].astype(np.float64)
    scores[[before, after]] = -np.inf
    runner_up = int(scores.argmax()) if len(scores) > 2 else -1
    given = False
    if runner_up >= 0:
        other = np.argsort(-on_the_way(runner_up), kind="stable")
        given = int(between.answers(between.active(other[:size]), rows)[0]) == runner_up
    row = {
        "old answer": before,
        "new answer": after,
        "margin": float(between.logits(1.0, rows).reshape(-1) @ contrast),
        "size": size,
        "share": size / between.units,
        "enough": enough,
        "needed": needed,
        "margin with": margin_with,
        "margin without": margin_without,
        "random": float(np.mean([is_certified(draw[:size]) for draw in draws])),
        "largest": float(is_certified(by_size)),
        "runner-up": runner_up,
        "runner-up given": given,
        "passes": passes,
    }
    return best, chosen[best], row
