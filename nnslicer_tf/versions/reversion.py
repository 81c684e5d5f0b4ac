"""Selective reversion: the fewest changes to take back, so that old answers return."""

from dataclasses import dataclass, field

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import ArrayLike, as_generator, check_number, counted
from nnslicer_tf._environment import track
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.versions.between import PATH, Between

_STEPS = 12
_BATCH = 512


@dataclass(repr=False, eq=False)
class Reversion(ShownAsTable):
    """A new version with a few changes taken back.

    Attributes:
        share: Share of the changed weights, channels or layers that were taken back.
        reverted: Their units' indices.
        steps: Share → what the held-out samples give: a row per step, see `to_frame`.
        model: The repaired model, an ordinary Keras model.
    """

    share: float
    reverted: np.ndarray
    steps: pd.DataFrame
    _order: np.ndarray = field(repr=False)
    _between: Between = field(repr=False)

    @property
    def model(self) -> keras.Model:
        """The repaired model; a new copy each time."""
        return self.model_at(self.share)

    def model_at(self, share: float) -> keras.Model:
        """Return the model with another share of the changes taken back, of those in `steps`."""
        check_number("share", share, f"[0, {float(self.steps['share'].max())}]")
        reverted = self._order[: round(share * self._between.units)]
        return self._between.model(1 - self._between.active(reverted))

    def change(self, unit: int) -> tuple[str, tuple[int, ...]]:
        """Return the name of a unit's variable or layer, and its index there."""
        return self._between.where(unit)

    def to_frame(self) -> pd.DataFrame:
        """Return the steps, and what the held-out samples give after each.

        Columns: share (of the changes that is taken back), accuracy, negative flips (right before,
        wrong now) and positive flips, all as shares.
        """
        return self.steps

    def __repr__(self) -> str:
        first, chosen = self.steps.iloc[0], self.steps[self.steps["share"] == self.share].iloc[0]
        return (
            f"Reversion({counted(len(self.reverted), 'change')}, {self.share:.2%}; held-out: "
            f"accuracy {first['accuracy']:.2%} → {chosen['accuracy']:.2%}, negative flips "
            f"{first['negative flips']:.2%} → {chosen['negative flips']:.2%}, positive flips "
            f"{first['positive flips']:.2%} → {chosen['positive flips']:.2%})"
        )


def revert(
    old: ModelLike,
    new: ModelLike,
    x: DataLike,
    y: ArrayLike | None = None,
    *,
    max_share: float = 0.03,
    held_out: float = 0.3,
    level: str = "weight",
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> Reversion:
    """Take back the fewest changes of weights so that old answers return and new skill stays.

    In steps, the changes whose reversion lowers the loss (cross-entropy, estimated by its
    derivative) most are taken back. The step with the fewest errors on held-out samples counts, the
    first of equals. No training.

    Args:
        old: The old version, a Keras or instrumented classifier.
        new: The new version, of the same architecture.
        x: Labelled samples of what the old version could do *and* of what the new one has learned.
        y: Their classes `(samples,)`, if `x` has none.
        max_share: Largest share of the changes that is taken back.
        held_out: Share of the samples on which the step is chosen, and no change.
        level: What is taken back as a whole: "weight", "channel" or "layer".
        rng: Seed or generator of the split.
        progress: Whether to show progress.

    Raises InvalidArgumentError if nothing flipped to a wrong answer, the versions have the same
    weights or differ in architecture, or for other bad arguments; InputShapeError, InputRangeError
    or NonFiniteActivationError for bad samples.
    """
    check_number("max_share", max_share, "(0, 1]")
    check_number("held_out", held_out, "(0, 1)")
    between = Between(old, new, level)
    x, labels = between.new.labelled(x, y)
    between.check(x)
    most = int(max_share * between.units + 1e-9)
    if not most:
        raise InvalidArgumentError(
            f"{max_share:.3g} of {counted(between.units, 'change')} at level {level!r} is less "
            f"than one: pass max_share=1 / {between.units} or more."
        )
    before = between.answers(0.0, x)
    if not ((before == labels) & (between.answers(1.0, x) != labels)).any():
        raise InvalidArgumentError(
            f"None of the {counted(len(x), 'sample')} that the old version answers right is wrong "
            "in the new one: there is nothing to take back."
        )
    order = as_generator(rng).permutation(len(x))
    held, chosen = np.split(order, [max(1, round(held_out * len(x)))])
    steps, active = [], np.ones(between.units, np.float32)

    def measure(share: float) -> None:
        answers = between.answers(active, x[held])
        right, was_right = answers == labels[held], before[held] == labels[held]
        flips = {"negative flips": was_right & ~right, "positive flips": ~was_right & right}
        means = {name: float(values.mean()) for name, values in flips.items()}
        steps.append({"share": share, "accuracy": float(right.mean()), **means})

    measure(0.0)
    taken: list[np.ndarray] = []
    shares = np.linspace(0, max_share, _STEPS + 1)[1:]
    counts = np.unique(np.minimum(np.ceil(shares * between.units), most)).astype(int)
    for count in track(counts, "Taking back", len(counts), progress):
        gains = _gains(between, active, x[chosen], labels[chosen])
        gains[active == 0] = -np.inf
        best = np.argsort(-gains, kind="stable")[: count - sum(map(len, taken))]
        taken.append(best[gains[best] > 0])
        active[taken[-1]] = 0
        measure(sum(map(len, taken)) / between.units)
    table = pd.DataFrame(steps)
    share = float(table["share"][int(table["accuracy"].argmax())])
    reverted = np.concatenate(taken)
    return Reversion(share, reverted[: round(share * between.units)], table, reverted, between)


def rank_changes(
    old: ModelLike,
    new: ModelLike,
    x: DataLike,
    y: ArrayLike | None = None,
    *,
    level: str = "channel",
    progress: bool = True,
) -> pd.DataFrame:
    """Rank changed parts by how much their change harms the answers: where is the fault?

    The harm is the rise of the loss (cross-entropy, summed over the samples) that a change causes:
    a mean of derivatives on the straight way between the versions' weights. Where no version at
    hand was right, `debugging.suspicious` ranks the parts of the faulty one alone.

    Arguments and errors are those of `revert`; samples that went wrong are among `x`.

    The columns are name (of the layer or variable), index and harm, the most harmful first.
    """
    between = Between(old, new, level)
    x, labels = between.new.labelled(x, y)
    between.check(x)
    harm = np.zeros(between.units)
    for share in track(PATH, "Ranking", len(PATH), progress):
        harm += _gains(between, share, x, labels) / len(PATH)
    order = np.argsort(-harm, kind="stable")
    return between.table(order, harm=harm[order])


def _gains(
    between: Between, active: np.ndarray | float, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Return how much taking back each unit's change lowers the loss, by its derivative."""
    classes = between.new.classes
    gains = np.zeros(between.units)
    for start in range(0, len(x), _BATCH):
        rows = between.rows(x[start : start + _BATCH])
        outputs = between.new.outputs_from(between.logits(active, rows))
        errors = np.eye(classes.count)[y[start : start + _BATCH]] - classes.probabilities(outputs)
        slopes = classes.of_scores(errors)  # of the log-likelihood, by the logits
        gains -= between.effects(active, rows, slopes)
    return gains
