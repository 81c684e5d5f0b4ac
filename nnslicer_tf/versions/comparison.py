"""Which answers changed between two versions, for the better and the worse, and where."""

from dataclasses import dataclass, field

import keras
import numpy as np
import pandas as pd
from scipy.stats import binomtest

from nnslicer_tf._checks import ArrayLike, check_number, counted
from nnslicer_tf._numerics import OutputClasses
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError, NonFiniteActivationError
from nnslicer_tf.instrument.ablated_network import named_variables
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.inputs import arrays_of, drawn
from nnslicer_tf.instrument.model import InstrumentedModel, ModelLike
from nnslicer_tf.instrument.outputs import check_exclusive
from nnslicer_tf.versions.between import Between, versions_of

_MAX_CHANGED = 500  # samples on which the layers' part is measured


@dataclass(repr=False, eq=False)
class VersionComparison(ShownAsTable):
    """The answers of two versions to the same samples.

    An answer is a class, of a map the class at each position, or numbers; how far two are apart,
    `OutputClasses.distances` says: 0 or 1, the share of positions, the root mean square difference.

    Attributes:
        kind: What the output means.
        tolerance: How far two answers may be apart and agree.
        answers: The old and the new version's answers, `(samples, 2, …)` int64, or float64 numbers.
        margins: Probability of their class less the next one's, `(samples, 2, …)` float64, or None.
        truth: The right answers `(samples, …)`, or None.
        layers: A row per layer: "weights", "changed" (their share) and "change" (norm of the
            change relative to that of the old weights); and the share of the changed answers' way
            (of classes, of the flips; of over 500, of 500 drawn) that is gone in the "old answer
            without" the layer's changes, and made in the "new answer with" these alone. Not the
            last two if architectures differ.
        not_compared: Variables that only one version has, or in another shape.
    """

    kind: OutputClasses
    tolerance: float
    answers: np.ndarray
    margins: np.ndarray | None
    truth: np.ndarray | None
    layers: pd.DataFrame
    not_compared: list[str] = field(default_factory=list)

    @property
    def changed(self) -> np.ndarray:
        """Indices of the samples whose answers are farther apart than the tolerance."""
        distances = self.kind.distances(self.answers[:, 0], self.answers[:, 1])
        return np.flatnonzero(distances > self.tolerance)

    @property
    def negative(self) -> np.ndarray:
        """Indices of those that only the old version answers right.

        Of maps and numbers, their distance to the right answer grew by more than the tolerance.
        """
        return self.changed[self._rise() > self.tolerance]

    @property
    def positive(self) -> np.ndarray:
        """Indices of those that only the new version answers right, or that came as much nearer."""
        return self.changed[-self._rise() > self.tolerance]

    @property
    def quality(self) -> dict[str, tuple[float, float]]:
        """Figure → both versions' values, as `OutputClasses.quality`; empty without the truth."""
        if self.truth is None:
            return {}
        return self.kind.both_qualities((self.answers[:, 0], self.answers[:, 1]), self.truth)

    def _rise(self) -> np.ndarray:
        """Return by how much the changed answers went away from the right ones, `(changed,)`."""
        if self.truth is None:
            raise InvalidArgumentError(
                "Whether an answer became better or worse needs the right answers: pass y."
            )
        truth, both = self.truth[self.changed], self.answers[self.changed]
        return self.kind.distances(both[:, 1], truth) - self.kind.distances(both[:, 0], truth)

    def interval(self, count: int) -> tuple[float, float]:
        """Return the 95 % interval (Clopper-Pearson) of a number of samples, as shares of all."""
        check_number("count", count, f"[0, {len(self.answers)}]")
        interval = binomtest(count, len(self.answers)).proportion_ci(0.95, method="exact")
        return float(interval.low), float(interval.high)

    def upper_bound(self, count: int) -> float:
        """Return the upper bound (Clopper-Pearson, 95 %, one-sided) of a number of samples."""
        check_number("count", count, f"[0, {len(self.answers)}]")
        test = binomtest(count, len(self.answers), alternative="less")
        return float(test.proportion_ci(0.95, method="exact").high)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per class (of the truth, or else of the old answer), and one for all.

        Columns: samples (of maps, positions), changed answers, and with known truth the accuracies
        (of maps, also the IoU), negative and positive flips. Numbers have one row: R² and RMSE.
        """
        figures, rows = self.quality, []
        if self.kind.is_number:
            row = {"class": "all", "samples": len(self.answers), "changed": len(self.changed)}
            for name, (old, new) in figures.items():
                row |= {f"{name}, old": old, f"{name}, new": new}
            if figures:
                row |= {"negative flips": len(self.negative), "positive flips": len(self.positive)}
            return pd.DataFrame([row])
        first, second = (self.answers[:, i].ravel() for i in (0, 1))
        by = first if self.truth is None else self.truth.ravel()
        for name in [*np.unique(by), "all"]:
            here = np.ones(len(by), bool) if name == "all" else by == name
            row = {"class": name, "positions" if self.kind.is_map else "samples": int(here.sum())}
            row["changed"] = int((here & (first != second)).sum())
            if figures:
                old, new = (first == by)[here], (second == by)[here]
                row |= {"accuracy, old": old.mean(), "accuracy, new": new.mean()}
                if self.kind.is_map:
                    both = figures["mean IoU" if name == "all" else f"IoU of class {name}"]
                    row |= {"IoU, old": both[0], "IoU, new": both[1]}
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
        figures = [f"{name} {old:.4g} → {new:.4g}" for name, (old, new) in self.quality.items()]
        lines += [f"From the old version to the new: {', '.join(figures)}."] if figures else []
        flipped = self.answers[:, 0] != self.answers[:, 1]
        if self.margins is not None and flipped.any():
            near = float((self.margins.min(axis=1)[flipped] < 0.1).mean())
            lines.append(
                f"Of the changed answers {near:.0%} are close in one version: the best two classes "
                "differ by less than 10 percentage points."
            )
        if "old answer without" in self.layers and len(self.changed):
            first = self.layers.loc[self.layers["old answer without"].idxmax()]
            lines.append(
                f"Layer '{first['layer']}' matters most: with its old weights, "
                f"{first['old answer without']:.0%} of the change is gone."
                if first["old answer without"] >= 0.005
                else "With no single layer's old weights are the answers nearer to the old ones."
            )
        if self.not_compared:
            lines.append(f"Not compared: {', '.join(self.not_compared)}.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        changed = len(self.changed) / len(self.answers)
        return f"VersionComparison({counted(len(self.answers), 'sample')}, {changed:.2%} changed)"


def compare(
    old: ModelLike,
    new: ModelLike,
    x: DataLike,
    y: ArrayLike | None = None,
    *,
    tolerance: float | None = None,
    output: str | None = None,
) -> VersionComparison:
    """Compare the answers of two versions of a model, and their layers.

    Args:
        old: The old version, a Keras or instrumented model, of classes, maps, numbers or images.
        new: The new version; or a LiteRT file made of the old one, which stands for the old model
            with the file's weights. Where the architectures differ, only the answers and the
            variables of the same name and shape are compared.
        x: Samples in any form of `DataLike`, for both versions.
        y: The right answers, if known: classes `(samples,)`, of maps `(samples, …)` at each
            position, or numbers; by default those in `x`, if it has labels.
        tolerance: How far two answers may be apart and agree. Numbers need it: the root mean square
            of their differences, in their own unit. Of maps it is the share of positions that may
            differ; None: no position.
        output: Name of the output that is compared; needed if there are several.

    Raises InvalidArgumentError if the versions answer in different forms, have independent labels
    or numbers without a tolerance, or several outputs of which none is named; InputShapeError,
    InputRangeError or NonFiniteActivationError for bad samples, or weights that are NaN.
    """
    old, new = versions_of(old, new, x, output)
    kind = new.classes
    for im in (old, new):
        check_exclusive(im)
    forms = [(c.is_number, c.count, *c.positions) for c in (old.classes, kind)]
    if forms[0] != forms[1]:
        (_, *old_form), (_, *new_form) = forms
        raise InvalidArgumentError(
            f"The answers cannot be compared: the old version has {old.classes.task} outputs of "
            f"{old_form[0]} classes or numbers in the shape {tuple(old_form[1:])}, the new one "
            f"{kind.task} outputs of {new_form[0]} in {tuple(new_form[1:])}."
        )
    tolerance = kind.tolerance(tolerance)
    if len(new.input_operations) == 1:
        samples, truth = new.labelled(x, y, required=False)
    else:
        samples = new.check(x)
        truth = None if y is None else kind.truth(y, len(samples))
    inputs = arrays_of(samples)  # in order, as the versions may name them differently
    given = samples if len(inputs) == 1 else list(inputs)
    answers, margins = [], []
    for im in (old, new):
        outputs = im.predict(given)
        answers.append(im.classes.answers(outputs))
        if not kind.is_number:
            best = np.sort(im.classes.probabilities(outputs), axis=-1)
            margins.append(best[..., -1] - best[..., -2])
    both = np.stack(answers, axis=1)
    changed = np.flatnonzero(kind.distances(*answers) > tolerance)
    changed = changed[drawn(samples[changed], _MAX_CHANGED)]
    layers, rest = _layers(old, new, samples[changed], both[changed])
    margin = np.stack(margins, axis=1) if margins else None
    return VersionComparison(kind, tolerance, both, margin, truth, layers, rest)


def _layers(
    old: InstrumentedModel, new: InstrumentedModel, x: np.ndarray, answers: np.ndarray
) -> tuple[pd.DataFrame, list[str]]:
    """Return the table of layers, and the variables that are not compared."""
    first, second = named_variables(old), named_variables(new)
    try:
        between = Between(old, new, "layer", of_classes=False)
        between.check(x)
    except InvalidArgumentError:  # another architecture, or nothing changed
        between = None
    shapes = [[tuple(v.shape) for v in each.values()] for each in (first, second)]
    if between is not None or shapes[0] == shapes[1]:  # in order: Keras numbers unnamed layers
        first = dict(zip(second, first.values(), strict=True))
    known = [{(name, tuple(v.shape)) for name, v in each.items()} for each in (first, second)]
    rest = sorted({name for name, _ in known[0] ^ known[1]})
    layers: dict[str, list[np.ndarray]] = {}
    for name, variable in second.items():
        if name not in rest and keras.backend.is_float_dtype(variable.dtype):
            values = [keras.ops.convert_to_numpy(v).ravel() for v in (first[name], variable)]
            layers.setdefault(name.rpartition("/")[0], []).append(np.stack(values))
    rows = []
    for layer, parts in layers.items():
        before, after = np.concatenate(parts, axis=1).astype(np.float64)
        if np.isnan([before, after]).any():
            raise NonFiniteActivationError(f"A version's layer {layer!r} has weights that are NaN.")
        size, change = np.linalg.norm(before), np.linalg.norm(after - before)
        row = {"layer": layer, "weights": len(before), "changed": (before != after).mean()}
        rows.append({**row, "change": change / size if size else np.inf if change else 0.0})
    table = pd.DataFrame(rows)
    if between is None or not len(answers):
        return table, rest
    units = {between.where(unit)[0]: [unit] for unit in range(between.units)}
    before, after = answers[:, 0], answers[:, 1]
    apart, distances = new.classes.distances(before, after).sum(), new.classes.distances
    columns: dict[str, list[float]] = {"old answer without": [], "new answer with": []}
    for layer in table["layer"]:
        active = between.active(units.get(layer, []))
        without, alone = between.answers(1 - active, x), between.answers(active, x)
        columns["old answer without"].append(1 - float(distances(without, before).sum() / apart))
        columns["new answer with"].append(1 - float(distances(alone, after).sum() / apart))
    return table.assign(**columns), rest
