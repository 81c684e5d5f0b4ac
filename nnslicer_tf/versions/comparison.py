"""Which answers changed between two versions, for the better and the worse, and where."""

from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pandas as pd
from scipy.stats import binomtest

from nnslicer_tf._checks import ArrayLike, check_labels, counted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.ablated_network import named_variables
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.model import InstrumentedModel, ModelLike
from nnslicer_tf.instrument.outputs import check_classifier
from nnslicer_tf.versions.between import Between, versions_of

_MAX_FLIPS = 500  # of which the layers' part is measured


@dataclass(repr=False, eq=False)
class VersionComparison(ShownAsTable):
    """The answers of two versions to the same samples.

    Attributes:
        answers: The old and the new version's class, `(samples, 2)` int64.
        margins: Probability of their class less the next one's, `(samples, 2)` float64.
        truth: The true classes `(samples,)`, or None.
        layers: A row per layer: "weights", "changed" (their share) and "change" (norm of the
            change relative to that of the old weights); and of the flipped samples, the share that
            gets the "old answer without" the layer's changes, and the "new answer with" these
            alone. The last two are missing if the architectures differ.
        not_compared: Variables that only one version has, or in another shape.
    """

    answers: np.ndarray
    margins: np.ndarray
    truth: np.ndarray | None
    layers: pd.DataFrame
    not_compared: list[str] = field(default_factory=list)

    @property
    def changed(self) -> np.ndarray:
        """Indices of the samples that the versions answer differently."""
        return np.flatnonzero(self.answers[:, 0] != self.answers[:, 1])

    @property
    def negative(self) -> np.ndarray:
        """Indices of the samples that only the old version answers right."""
        right = self._right()
        return np.flatnonzero(right[:, 0] & ~right[:, 1])

    @property
    def positive(self) -> np.ndarray:
        """Indices of the samples that only the new version answers right."""
        right = self._right()
        return np.flatnonzero(~right[:, 0] & right[:, 1])

    def _right(self) -> np.ndarray:
        if self.truth is None:
            raise InvalidArgumentError(
                "Whether an answer became better or worse needs the true classes: pass y."
            )
        return self.answers == self.truth[:, None]

    def interval(self, count: int) -> tuple[float, float]:
        """Return the 95 % interval (Clopper-Pearson) of a number of samples, as shares of all."""
        interval = binomtest(count, len(self.answers)).proportion_ci(0.95, method="exact")
        return float(interval.low), float(interval.high)

    def upper_bound(self, count: int) -> float:
        """Return the upper bound (Clopper-Pearson, 95 %, one-sided) of a number of samples."""
        test = binomtest(count, len(self.answers), alternative="less")
        return float(test.proportion_ci(0.95, method="exact").high)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per class (of the truth, or else of the old answer), and one for all.

        Columns: samples, changed answers, and with known truth the accuracies, negative and
        positive flips.
        """
        by = self.answers[:, 0] if self.truth is None else self.truth
        rows = []
        for name in [*np.unique(by), "all"]:
            here = np.ones(len(by), bool) if name == "all" else by == name
            row = {"class": name, "samples": int(here.sum())}
            row["changed"] = int((here & (self.answers[:, 0] != self.answers[:, 1])).sum())
            if self.truth is not None:
                old, new = self._right()[here].T
                row |= {"accuracy, old": old.mean(), "accuracy, new": new.mean()}
                row |= {"negative flips": (old & ~new).sum(), "positive flips": (~old & new).sum()}
            rows.append(row)
        return pd.DataFrame(rows)

    def summary(self) -> str:
        """Return the shares of changed answers with their intervals, and what matters most."""
        lines = []
        parts = {"The versions disagree on": self.changed}
        if self.truth is not None:
            parts |= {"Worse (negative flips):": self.negative, "Better:": self.positive}
        for what, which in parts.items():
            low, high = self.interval(len(which))
            share = len(which) / len(self.answers)
            lines.append(
                f"{what} {share:.2%} of {counted(len(self.answers), 'sample')} (95 % interval "
                f"{low:.2%} to {high:.2%})."
            )
        if len(self.changed):
            near = float((self.margins[self.changed].min(axis=1) < 0.1).mean())
            lines.append(
                f"Of the changed answers {near:.0%} are close in one version: the best two classes "
                "differ by less than 10 percentage points."
            )
        if "old answer without" in self.layers and len(self.changed):
            first = self.layers.loc[self.layers["old answer without"].idxmax()]
            lines.append(
                f"Layer '{first['layer']}' matters most: with its old weights, the new version "
                f"gives {first['old answer without']:.0%} of the old answers."
            )
        if self.not_compared:
            lines.append(f"Not compared: {', '.join(self.not_compared)}.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        changed = len(self.changed) / len(self.answers)
        return f"VersionComparison({counted(len(self.answers), 'sample')}, {changed:.2%} changed)"


def compare(
    old: ModelLike, new: ModelLike, x: DataLike, y: ArrayLike | None = None
) -> VersionComparison:
    """Compare the answers of two versions of a classifier, and their layers.

    Args:
        old: The old version, a Keras or instrumented model.
        new: The new version; or a LiteRT file made of the old one, which stands for the old model
            with the file's weights. Where the architectures differ, only the answers and the
            variables of the same name and shape are compared.
        x: Samples in any form of `DataLike`, for both versions.
        y: Their true classes `(samples,)`, if known.

    Raises:
        InvalidArgumentError: if a version is no classifier with one output, or they have different
            numbers of classes, or of inputs.
        InputShapeError, InputRangeError, NonFiniteActivationError: for bad samples.
    """
    old, new = versions_of(old, new, x)
    for im in (old, new):
        check_classifier(im, exclusive=True, one_output=True)
    if old.classes.count != new.classes.count:
        raise InvalidArgumentError(
            f"The old version has {counted(old.classes.count, 'class')}, the new one "
            f"{new.classes.count}: their answers cannot be compared."
        )
    samples = new.check(x)
    truth = None if y is None else check_labels(y, len(samples), new.classes.count)
    inputs = arrays_of(samples)  # in order, as the versions may name them differently
    given = samples if len(inputs) == 1 else list(inputs)
    answers, margins = [], []
    for im in (old, new):
        outputs = im.predict(given)
        answers.append(im.classes.from_outputs(outputs))
        best = np.sort(im.classes.probabilities(outputs), axis=-1)
        margins.append(best[:, -1] - best[:, -2])
    both = np.stack(answers, axis=1).astype(np.int64)
    flips = np.flatnonzero(both[:, 0] != both[:, 1])[:_MAX_FLIPS]
    layers, rest = _layers(old, new, samples[flips], both[flips])
    return VersionComparison(both, np.stack(margins, axis=1), truth, layers, rest)


def _layers(
    old: InstrumentedModel, new: InstrumentedModel, x: np.ndarray, answers: np.ndarray
) -> tuple[pd.DataFrame, list[str]]:
    """Return the table of layers, and the variables that are not compared."""
    first, second = named_variables(old), named_variables(new)
    try:
        between = Between(old, new, "layer")
        between.check(x)
    except InvalidArgumentError:  # another architecture, or nothing changed
        between = None
    same = between is not None or list(map(_shape, first.values())) == list(
        map(_shape, second.values())
    )
    if same:  # in order: Keras numbers layers without a name
        first = dict(zip(second, first.values(), strict=True))
    rest = sorted(
        name
        for name in {**first, **second}
        if name not in first or name not in second or _shape(first[name]) != _shape(second[name])
    )
    layers: dict[str, list[np.ndarray]] = {}
    for name, variable in second.items():
        if name not in rest and keras.backend.is_float_dtype(variable.dtype):
            values = [keras.ops.convert_to_numpy(v).ravel() for v in (first[name], variable)]
            layers.setdefault(name.rpartition("/")[0], []).append(np.stack(values))
    rows = []
    for layer, parts in layers.items():
        before, after = np.concatenate(parts, axis=1).astype(np.float64)
        size, change = np.linalg.norm(before), np.linalg.norm(after - before)
        row = {"layer": layer, "weights": len(before), "changed": (before != after).mean()}
        rows.append({**row, "change": change / size if size else np.inf if change else 0.0})
    table = pd.DataFrame(rows)
    if between is None or not len(answers):
        return table, rest
    places = {between.where(unit)[0]: unit for unit in range(between.units)}
    columns: dict[str, list[float]] = {"old answer without": [], "new answer with": []}
    for layer in table["layer"]:
        active = np.zeros(between.units)
        if layer in places:
            active[places[layer]] = 1
        without, alone = between.answers(1 - active, x), between.answers(active, x)
        columns["old answer without"].append(float((without == answers[:, 0]).mean()))
        columns["new answer with"].append(float((alone == answers[:, 1]).mean()))
    return table.assign(**columns), rest


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(variable.shape)
