"""`Explanation`: why a model gave one sample its answer. `Slicer.explain` makes it."""

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf._checks import check_count, counted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.attributions import Target, metrics
from nnslicer_tf.attributions.background import DEEPLIFT, Background
from nnslicer_tf.attributions.deep_explainer import as_shap
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.explanation import explanation_figure, explanation_html, save_explanation
from nnslicer_tf.slicing.decisive import DecisiveSlices
from nnslicer_tf.slicing.slice import Slice, operation_of

_MIN_LEAD = 0.01  # share of the answers' range by which another method must be ahead
_MIN_USUAL = 0.5  # share of the usual slices that have a typical synapse
_MAX_RARE = 0.1


@dataclass(frozen=True, eq=False)
class Comparison:
    """Attributions of the same target by several methods, judged on the sample."""

    # Method → attributions of the input, float64, or a dict by input; the explanation's own first.
    values: Mapping[str, Any]
    deletion: Mapping[str, metrics.Curve]
    insertion: Mapping[str, metrics.Curve]
    left_out: Mapping[str, str] = field(default_factory=dict)  # method → why it is not shown

    @property
    def best(self) -> str:
        """The method with the best areas, or the explanation's own, if it is at most 1 % behind."""
        ahead = {n: self.insertion[n].area - self.deletion[n].area for n in self.values}
        answers = [curve.answers for curve in (*self.deletion.values(), *self.insertion.values())]
        best, own = max(ahead, key=lambda name: ahead[name]), next(iter(self.values))
        return best if ahead[best] - ahead[own] > _MIN_LEAD * np.ptp(answers) else own

    def to_frame(self) -> pd.DataFrame:
        """Return a table of the areas under each method's curves, best first."""
        rows = [(n, c.area, self.insertion[n].area) for n, c in self.deletion.items()]
        frame = pd.DataFrame(rows, columns=["method", "deletion (less is better)", "insertion"])
        order = np.argsort(frame.iloc[:, 1] - frame.iloc[:, 2], kind="stable")
        return frame.iloc[order].reset_index(drop=True)


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(ShownAsTable):
    """An explanation of why a model gave one sample its answer.

    Notebooks display it; `save` writes a picture or a page.

    Attributes:
        sample: The sample, of the model's input shape, float32; a dict by name for several inputs.
        target: The explained class, or neurons whose mean value is explained.
        whole: The whole model's answer, float64: the probabilities of the classes (1 − p and p for
            one sigmoid), or the value of another target, `(1,)`.
        kept: The answer with only the slice active; inactive synapses contribute their mean.
        removed: The answer with the slice removed.
        contributions: How much each feature raises the target's score, in the unit of the logit,
            float64 of the sample's shape; one value per token. They add up to the score less its
            mean over the background rows (without them, less the mean row's). Columns of a group
            share its contribution equally. A dict by name for several inputs.
        background: The contributions against each background row; None against the mean.
        slice: The sample's slice for the target; both classes of a single sigmoid share one.
        values: Operation name → its output for the sample.
        means: Operation name → its mean over the profiled data.
        classes, columns, words: Names of the classes, of a table's columns (after the input's name
            if there are several: "row: age"), and the words of a text; empty if unknown.
        decisive: The smallest slice found that keeps the model's answer with at least half of its
            log-odds, with its certificate; None for a class that is not the model's answer.
        contrast: The same for which of two classes leads; None unless two are compared.
        withheld: Why there is no decisive slice, and what to pass for one; else "".
        finding: What was assumed about the outputs, and why the slice is empty or nearly complete,
            or the network dead; else "".
        frequencies: Kernel name → share of the usual slices that have each synapse, or None.
        comparison: Other methods, judged on this sample; None if there are none.
        token_inputs: Names of the inputs that are tokens.
    """

    sample: Any
    target: Target
    whole: np.ndarray
    kept: np.ndarray
    removed: np.ndarray
    contributions: Any
    background: Background | None
    slice: Slice
    values: Mapping[str, np.ndarray]
    means: Mapping[str, np.ndarray]
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    words: tuple[str, ...]
    decisive: DecisiveSlices | None
    contrast: DecisiveSlices | None
    withheld: str
    finding: str
    frequencies: Mapping[str, np.ndarray] | None
    comparison: Comparison | None
    token_inputs: frozenset[str]
    _amounts: Callable[[], Slice]
    _first_calls: Mapping[str, str]  # operation → the same one of its layer's first call

    @cached_property
    def amounts(self) -> Slice:
        """Contributions of all neurons and synapses to the target, in the unit of the logit."""
        return self._amounts()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: with the amounts in place of the function that computes them."""
        return {**vars(self), "_amounts": partial(copy.copy, self.amounts)}

    @property
    def own_method(self) -> str:
        """Name of the contributions among the methods that are compared."""
        return DEEPLIFT if self.background is None else self.background.method

    @property
    def predicted(self) -> int | None:
        """The class that the model predicts; None if the target is a value."""
        return None if self.target.label is None else int(self.whole.argmax())

    def name(self, label: int) -> str:
        """Return the name of a class, or its number."""
        return self.classes[label] if self.classes else str(label)

    @property
    def question(self) -> str:
        """Name of what is explained: a class, or neurons such as "price" or "map[3, 4]"."""
        names = [self._named(n) for n in (self.target.neurons, self.target.against) if n]
        return " rather than ".join(names)

    def _named(self, neurons: tuple[int, ...]) -> str:
        if self.target.label is not None:
            return self.name(self.target.label if neurons == self.target.neurons else neurons[0])
        shape = self.means[self.target.operation].shape
        if np.prod(shape) == 1:
            return self.target.answer
        if len(neurons) == 1:
            index = ", ".join(map(str, np.unravel_index(neurons[0], shape)))
            return f"{self.target.answer}[{index}]"
        return f"the mean of {len(neurons)} neurons of {self.target.answer}"

    def to_frame(self) -> pd.DataFrame:
        """Return the answers of the whole model, with only the slice, and without the slice.

        A classifier's table has the leading classes.
        """
        shown, names = [0], [self.question]
        if self.target.label is not None:
            leading = np.argsort(-self.whole, kind="stable")[:3].tolist()
            every = [self.target.label, *self.target.against, *leading, int(self.kept.argmax())]
            shown = list(dict.fromkeys(every))
            names = [self.name(label) for label in shown]
        return pd.DataFrame(
            {
                "answer": names,
                "whole model": self.whole[shown],
                "slice alone": self.kept[shown],
                "without the slice": self.removed[shown],
            }
        )

    def channels(self, most: int = 3) -> pd.DataFrame:
        """Return the `most` most important channels (or units) of each layer, from output to input.

        Layers with kernels at each of their calls, before activations; recurrent ones by states.

        The columns are layer, channel, contribution (the sum of amounts over its positions), share
        (its part of the layer's magnitudes), value and usual value (means over positions).
        """
        first = self._first_calls
        weighted = {operation_of(kernel, first.values()) for kernel in self.slice.synapses}
        rows = []
        for name, neurons in reversed(self.amounts.neurons.items()):
            if first[name] not in weighted:
                continue
            by_channel = neurons.reshape(-1, neurons.shape[-1])
            sizes = np.abs(by_channel).sum(axis=0)
            for c in _largest(sizes, most):
                value, usual = (a[name][..., c].mean() for a in (self.values, self.means))
                share = sizes[c] / sizes.sum()
                rows.append((name, c, float(by_channel[:, c].sum()), share, value, usual))
        columns = ["layer", "channel", "contribution", "share", "value", "usual value"]
        return pd.DataFrame(rows, columns=columns)

    def synapses(self, most: int = 3) -> pd.DataFrame:
        """Return the `most` most important synapses of each layer, from output to input.

        The columns are layer, synapse (its index in the kernel), contribution (its amount), share
        (its part of the layer's magnitudes) and, with usual samples, frequency.
        """
        rows = []
        for name, values in reversed(self.amounts.synapses.items()):
            sizes = np.abs(values).ravel()
            for i in _largest(sizes, most):
                row: dict[str, Any] = {"layer": name}
                row["synapse"] = ", ".join(str(int(k)) for k in np.unravel_index(i, values.shape))
                row |= {"contribution": float(values.flat[i]), "share": sizes[i] / sizes.sum()}
                if self.frequencies is not None:
                    row["frequency"] = float(self.frequencies[name].flat[i])
                rows.append(row)
        return pd.DataFrame(rows)

    def differences(self) -> pd.DataFrame:
        """Return how the slice differs from the usual slices of the class, for each kernel.

        The columns are layer, synapses (number in this slice), usual (of these, in at least half of
        the usual slices), rare (of these, in fewer than a tenth), missing (in at least half of the
        usual slices, but not in this one).

        Raises InvalidArgumentError if no usual samples were given.
        """
        if self.frequencies is None:
            raise InvalidArgumentError(
                "There are no usual samples to compare with: pass some of the class, "
                "slicer.explain(x, usual=x_train[y_train == label])."
            )
        rows = []
        for name, values in self.slice.synapses.items():
            here, often = values != 0, self.frequencies[name] >= _MIN_USUAL
            rare = self.frequencies[name] < _MAX_RARE
            rows.append((name, *(int(m.sum()) for m in (here, here & often, here & rare))))
            rows[-1] += (int((often & ~here).sum()),)
        return pd.DataFrame(rows, columns=["layer", "synapses", "usual", "rare", "missing"])

    def summary(self) -> str:
        """Return the explanation as text."""
        what, label = self.question, self.target.label
        names = self.classes or ([] if label is None else list(map(str, range(len(self.whole)))))

        def said(answers: np.ndarray) -> str:
            if label is None:
                return f"{answers[0]:.4g}"
            leading, asked = int(answers.argmax()), (label, *self.target.against)
            text = ", ".join(f"{self.name(n)} with {answers[n]:.1%}" for n in asked)
            return text if leading == label else f"{text} (it answers {self.name(leading)})"

        if label is None or self.predicted is None:
            lines = [f"The model answers {what} = {said(self.whole)}."]
        else:
            classes = dict.fromkeys([self.predicted, label, *self.target.against])
            answers = ", ".join(f"{self.name(n)} with {self.whole[n]:.1%}" for n in classes)
            lines = [f"The model answers {answers}."]

        # The strongest first: a slice that decides, unless the search is not specific.
        found = [one for one in (self.contrast, self.decisive) if one is not None]
        if label is not None and self.decisive is not None:
            row = {name: column[0] for name, column in self.decisive.certificate.items()}
            if row["empty answer"] == row["answer"]:
                is_on = self.decisive.info["kind"] == "class" or row["answer"]
                it = "it" if is_on else f"not {self.name(label)}"
                lines.append(
                    f"The answer stands without any part: with every synapse at its mean, {it} has "
                    f"{row['probability of empty answer']:.1%}. What keeps it proves little."
                )
        kept = all(one.certificate["kept"][0] for one in found)
        of = what.split(" rather than ")[0]
        is_specific = kept and not any(g for one in found for _, g in one.info["others"][0])
        decisive = [] if is_specific else ["No specific slice was found."]
        for one in found:
            own = f" for {of} among all classes"
            asked = f" for {what}" if one is self.contrast else own if len(found) == 2 else ""
            decisive.append(f"Decisive slice{asked}: {one.summary(0, names)}")
        if len(found) == 2:
            total = found[0][0].compare(found[1][0]).iloc[-1]
            decisive.append(
                f"The two have {total['both']:,} of their {total['left']:,} and "
                f"{total['right']:,} synapses in common."
            )
        against = [] if self.background is None else [self.background.summary()]
        lines += [*decisive, *against] if is_specific else [*against, *decisive]
        if self.withheld:
            lines.append(self.withheld)
        synapses = self.slice.to_vector()
        lines += [
            f"The slice by counts for {of} has {np.count_nonzero(synapses):,} of "
            f"{counted(len(synapses), 'synapse')} ({(synapses != 0).mean():.1%}), "
            f"at θ = {self.slice.info.get('theta')}."
        ]
        if not found:  # one certificate is enough
            suffice = label is not None and label == self.kept.argmax() == self.removed.argmax()
            lines.append(
                f"With only the slice active the model answers {said(self.kept)}; with the slice "
                f"removed, {said(self.removed)}. Inactive synapses contribute their mean values."
                + (" So other parts suffice, too." if suffice else "")
            )
        if self.finding:
            lines.append(self.finding)
        if self.frequencies is not None:
            total = self.differences().sum(numeric_only=True)
            lines.append(
                f"Compared with the usual samples: {total['usual']:,} of its synapses are typical, "
                f"{total['rare']:,} are unusual, and {total['missing']:,} typical ones are absent."
            )
        if self.comparison is not None:
            best, areas = self.comparison.best, self.comparison.to_frame().set_index("method")
            text = "; ".join(
                f"{n}: {areas.loc[n].iloc[0]:.3f} and {areas.loc[n].iloc[1]:.3f}"
                for n in dict.fromkeys([self.own_method, best])
            )
            lines.append(
                f"No other method that was tried explains this sample better (areas of deletion "
                f"and insertion, {text})."
                if best == self.own_method
                else f"Here, {best} explains better than {self.own_method} (areas of deletion and "
                f"insertion, {text})."
            )
        return "\n".join(lines)

    def to_shap(self) -> Any:
        """Return the contributions as a `shap.Explanation`, for shap's plots.

        Values of a table's features, otherwise of the sample's shape; the base value is the mean
        score of the background rows (or the mean row's), to which they add up. For several inputs
        that are not columns of a table, a dict by name.

        Raises MissingPackageError if shap is not installed.
        """
        values = self.values[self.target.operation].ravel()
        score = float(self.target.weights(values.size) @ values)
        total = sum(float(np.sum(part)) for part in keras.tree.flatten(self.contributions))
        args = self.contributions, self.sample, score - total, self.background
        return as_shap(*args, self.columns or self.words)

    def figure(self) -> Figure:
        """Return a figure: the sample with its contributions, other methods, and the answers."""
        return explanation_figure(self)

    def save(self, path: str | os.PathLike) -> None:
        """Write a page (.html) or a picture (.png, .pdf, .svg); reject other endings."""
        save_explanation(self, path)

    def __repr__(self) -> str:
        return f"Explanation({self.summary().splitlines()[0]} {self.slice!r})"

    def _repr_html_(self) -> str:
        return explanation_html(self)


def _largest(sizes: np.ndarray, most: int) -> list[int]:
    """Return the indices of the `most` largest positive sizes, in descending order."""
    check_count("most", most)
    return [int(i) for i in np.argsort(-sizes, kind="stable")[:most] if sizes[i] > 0]
