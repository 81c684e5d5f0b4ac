"""`Explanation`: why a model assigned a class to one sample, based on the sample's slice.

Time: a slice of one sample, two masked copies of the model, and any methods to compare with.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._checks import as_array
from nnslicer_tf._names import check_name
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.attributions import ATTRIBUTIONS, DeletionCurve, deletion_curve
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, MaskedModel
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.slicing.slice import Slice

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from nnslicer_tf.slicing.slicer import Slicer

SLICE = "slice"
RANDOM = "random order"
_USUAL = 0.5
_RARE = 0.1
_NEARLY_ALL = 0.9
_ROUNDING = 1e-4  # of probabilities that sum to 1
_UNDECIDED = 1.5  # largest probability of an untrained model, times the number of classes


@dataclass(frozen=True, eq=False)
class Comparison:
    """Attributions of the same output by other methods, next to the slice's contributions.

    Attributes:
        values: Method → attribution of each input feature, of the sample's shape, float64.
        curves: Method → its deletion curve.
        left_out: Method → why it does not apply to this model.
    """

    values: Mapping[str, np.ndarray]
    curves: Mapping[str, DeletionCurve]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_frame(self) -> "pd.DataFrame":
        """Return a table of the area under each method's deletion curve, best first."""
        import pandas as pd

        rows = [(name, curve.area) for name, curve in self.curves.items()]
        frame = pd.DataFrame(rows, columns=["method", "area below the deletion curve"])
        return frame.sort_values(frame.columns[1], ignore_index=True)


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(ShownAsTable):
    """An explanation of why a model assigned a class to one sample.

    Notebooks display it; `save` writes a picture or a page.

    Attributes:
        sample: The sample, of the model's input shape, float32.
        target: The class that is explained.
        probabilities: Probabilities of the whole model, `(classes,)` float64. If the model ends in
            logits, their softmax; for a model with one sigmoid, 1 − p and p.
        kept: The same with only the slice; all other synapses still contribute their mean.
        removed: The same without the slice.
        slice: The sample's slice for the class; both classes of a single sigmoid share one.
        values: Operation name → its output for the sample.
        means: Operation name → its mean over the profiled data.
        classes: Names of the classes; empty if they have none.
        finding: A message about a slice that is empty or nearly complete, or about a dead
            network; "" for an ordinary slice.
        frequencies: Kernel name → share of the usual samples whose slices have each synapse; None
            if no usual samples were given.
        comparison: Results of other methods; None if none were requested.
    """

    sample: np.ndarray
    target: int
    probabilities: np.ndarray
    kept: np.ndarray
    removed: np.ndarray
    slice: Slice
    values: Mapping[str, np.ndarray]
    means: Mapping[str, np.ndarray]
    classes: tuple[str, ...]
    finding: str
    frequencies: Mapping[str, np.ndarray] | None
    comparison: Comparison | None

    @property
    def predicted(self) -> int:
        """The class that the model predicts."""
        return int(self.probabilities.argmax())

    @cached_property
    def contributions(self) -> np.ndarray:
        """Signed contributions of the input's features, of the sample's shape, int64.

        At channel granularity, each position has the contribution of its channel.
        """
        found = next(iter(self.slice.neurons.values()))
        return np.broadcast_to(found, self.sample.shape)

    def name(self, label: int) -> str:
        """Return the name of a class, or its number."""
        return self.classes[label] if self.classes else str(label)

    def to_frame(self) -> "pd.DataFrame":
        """Return the probabilities of the leading classes: whole model, only the slice, without."""
        import pandas as pd

        leading = np.argsort(-self.probabilities, kind="stable")[:3].tolist()
        shown = list(dict.fromkeys([self.target, *leading, int(self.kept.argmax())]))
        return pd.DataFrame(
            {
                "class": [self.name(label) for label in shown],
                "whole model": self.probabilities[shown],
                "slice alone": self.kept[shown],
                "without the slice": self.removed[shown],
            }
        )

    def channels(self, most: int = 3) -> "pd.DataFrame":
        """Return the channels (or units) that matter most in each layer, from output to input.

        Args:
            most: Number of channels per layer.

        Returns:
            Columns layer, channel, contribution (the sum over its positions), share (its
            part of the layer's magnitudes), value and usual value (means over positions).
        """
        import pandas as pd

        rows = []
        for name, neurons in reversed(self.slice.neurons.items()):
            if name not in self._layers:
                continue
            by_channel = neurons.reshape(-1, neurons.shape[-1])
            sizes = np.abs(by_channel).sum(axis=0)
            for c in _largest(sizes, most):
                value, usual = (a[name][..., c].mean() for a in (self.values, self.means))
                share = sizes[c] / sizes.sum()
                rows.append((name, c, int(by_channel[:, c].sum()), share, value, usual))
        columns = ["layer", "channel", "contribution", "share", "value", "usual value"]
        return pd.DataFrame(rows, columns=columns)

    def synapses(self, most: int = 3) -> "pd.DataFrame":
        """Return the synapses that matter most in each layer, from output to input.

        Args:
            most: Number of synapses per layer.

        Returns:
            Columns layer, synapse (its index in the kernel), contribution, share (its part of
            the layer's magnitudes) and, with usual samples, frequency.
        """
        import pandas as pd

        rows = []
        for name, values in reversed(self.slice.synapses.items()):
            sizes = np.abs(values).ravel()
            for i in _largest(sizes, most):
                row: dict[str, Any] = {"layer": name}
                row["synapse"] = ", ".join(str(int(k)) for k in np.unravel_index(i, values.shape))
                row |= {"contribution": int(values.flat[i]), "share": sizes[i] / sizes.sum()}
                if self.frequencies is not None:
                    row["frequency"] = float(self.frequencies[name].flat[i])
                rows.append(row)
        return pd.DataFrame(rows)

    def differences(self) -> "pd.DataFrame":
        """Return how the slice differs from the usual slices of the class, for each kernel.

        Returns:
            Columns layer, synapses (number in this slice), usual (those that are in at least half
            of the usual slices), rare (those in fewer than a tenth), missing (synapses in at least
            half of the usual slices, but not in this one).

        Raises:
            InvalidArgumentError: if no usual samples were given.
        """
        import pandas as pd

        if self.frequencies is None:
            raise InvalidArgumentError(
                "There is nothing to differ from: pass usual samples of the class, "
                "slicer.explain(x, usual=x_train[y_train == label])."
            )
        rows = []
        for name, values in self.slice.synapses.items():
            here, often = values != 0, self.frequencies[name] >= _USUAL
            rare = self.frequencies[name] < _RARE
            rows.append((name, *(int(m.sum()) for m in (here, here & often, here & rare))))
            rows[-1] += (int((often & ~here).sum()),)
        return pd.DataFrame(rows, columns=["layer", "synapses", "usual", "rare", "missing"])

    def summary(self) -> str:
        """Return the explanation as text."""
        synapses = np.concatenate([v.ravel() for v in self.slice.synapses.values()])
        label, p = self.name(self.target), self.probabilities
        lines = [
            f"The model gives {self.name(self.predicted)} ({p[self.predicted]:.1%})"
            + ("." if self.target == self.predicted else f", and {label} {p[self.target]:.1%}."),
            f"The slice for {label} has {np.count_nonzero(synapses):,} of {len(synapses):,} "
            f"synapses ({(synapses != 0).mean():.1%}), at θ = {self.slice.info.get('theta')}.",
            f"Kept alone, it gives {label} {self.kept[self.target]:.1%}; without it the model "
            f"gives {label} {self.removed[self.target]:.1%}.",
        ]
        if self.finding:
            lines.append(self.finding)
        if self.frequencies is not None:
            total = self.differences().sum(numeric_only=True)
            lines.append(
                f"Of its synapses {total['usual']:,} are in most slices of the class, "
                f"{total['rare']:,} in hardly any; {total['missing']:,} usual ones are missing."
            )
        if self.comparison is not None:
            best = self.comparison.to_frame().iloc[0]
            lines.append(f"Best deletion curve: {best.iloc[0]} (area {best.iloc[1]:.3f}).")
        return "\n".join(lines)

    def figure(self) -> "Figure":
        """Return a figure: the sample, signed contributions, magnitudes, probabilities."""
        from nnslicer_tf.report.explanations import explanation_figure

        return explanation_figure(self)

    def save(self, path: str | os.PathLike) -> None:
        """Write a page (.html) or a picture (.png, .pdf, .svg).

        Raises:
            InvalidArgumentError: if the file has a different ending, or cannot be written.
        """
        from nnslicer_tf.report.explanations import save_explanation

        save_explanation(self, Path(path))

    def __repr__(self) -> str:
        return f"Explanation({self.summary().splitlines()[0]} {self.slice!r})"

    def _repr_html_(self) -> str:
        from nnslicer_tf.report.explanations import explanation_html

        return explanation_html(self)

    @property
    def _layers(self) -> set[str]:
        """Names of the operations that represent layers with kernels, before activations."""
        kernels = set(self.slice.synapses)
        return {name for name in self.slice.neurons if name.split(":")[0] in kernels} - {
            name for name in self.slice.neurons if f"{name}:pre" in self.slice.neurons
        }


def explain(
    slicer: "Slicer",
    x: DataLike,
    target: int | None = None,
    *,
    classes: Sequence[str] = (),
    usual: DataLike | None = None,
    compare: bool | Iterable[str] = False,
) -> Explanation:
    """Explain why a model assigned a class to one sample; see `Slicer.explain`."""
    im = slicer.im
    sample = _one_sample(im, x)
    values = {name: value[0] for name, value in im.capture(sample[None]).items()}
    probabilities = _probabilities(im, values[im.output_operations[0]])
    names = _check_classes(classes, len(probabilities))
    methods = _check_methods(compare, im)
    if target is None:
        target = int(probabilities.argmax())
    one = slicer.slice(sample[None], outputs=[_neuron(im, target)])
    means = slicer.profile.means
    mask = one.synapse_mask()
    frequencies = None if usual is None else _frequencies(slicer, usual, _neuron(im, target))
    comparison = None
    if methods:
        given = np.broadcast_to(one.neurons[im.input_operation], sample.shape)
        comparison = _compare(im, sample, means[im.input_operation], target, methods, given)
    return Explanation(
        sample=sample,
        target=target,
        probabilities=probabilities,
        kept=_masked(im, mask, means, sample),
        removed=_masked(im, {name: ~m for name, m in mask.items()}, means, sample),
        slice=one,
        values=values,
        means=means,
        classes=names,
        finding=_finding(slicer, one, values, probabilities, target),
        frequencies=frequencies,
        comparison=comparison,
    )


def _one_sample(im: InstrumentedModel, x: Any) -> np.ndarray:
    if not isinstance(x, (str, os.PathLike)) and np.shape(x) == im.input_shape:
        x = as_array(x)[None]
    checked = im.check(x)
    if len(checked) != 1:
        raise InvalidArgumentError(
            f"One sample is explained at a time. Received: {len(checked)}; pass x[i], or "
            "look at many with slicer.slice_each(x) and nnslicer_tf.explore."
        )
    return checked[0]


def _neuron(im: InstrumentedModel, target: int) -> int:
    """Return the index of a class's logit.

    Both classes of a sigmoid have the same slice: contributions count for or against the
    change of the output, whichever its sign.
    """
    return 0 if _is_binary(im) and target in (0, 1) else target


def _is_binary(im: InstrumentedModel) -> bool:
    """Whether the model represents two classes by one sigmoid."""
    is_one = im[im.output_operations[0]].size == 1
    return is_one and im.logit_operation != im.output_operations[0]


def _check_classes(classes: Sequence[str], count: int) -> tuple[str, ...]:
    names = tuple(map(str, classes))
    if names and len(names) != count:
        raise InvalidArgumentError(
            f"The model has {count} classes; names of {len(names)} classes were given."
        )
    return names


def _check_methods(compare: bool | Iterable[str], im: InstrumentedModel) -> tuple[str, ...]:
    if isinstance(compare, bool):
        methods = tuple(ATTRIBUTIONS) if compare else ()
    else:
        methods = (compare,) if isinstance(compare, str) else tuple(compare)
    for name in methods:
        check_name("attribution", name, ATTRIBUTIONS)
    if methods and _is_binary(im):
        raise InvalidArgumentError(
            "Other methods are compared by the softmax of a logit; the model has one output. Leave "
            "`compare` out."
        )
    return methods


def _probabilities(im: InstrumentedModel, outputs: np.ndarray) -> np.ndarray:
    """Convert a model's outputs to probabilities, by a softmax if it ends in logits.

    Raises:
        InvalidArgumentError: if the model has one output and no sigmoid.
    """
    flat = np.asarray(outputs, np.float64).reshape(-1)
    if _is_binary(im):
        return np.array([1 - flat[0], flat[0]])
    if len(flat) == 1:
        raise InvalidArgumentError(
            "Classes are explained; the model has one output, and no sigmoid. Add a sigmoid if it "
            "tells two classes apart, or look at slicer.slice(x, outputs=[0])."
        )
    is_distribution = flat.min() >= 0 and abs(flat.sum() - 1) < _ROUNDING
    if im.logit_operation != im.output_operations[0] or is_distribution:
        return flat
    odds = np.exp(flat - flat.max())
    return odds / odds.sum()


def _masked(
    im: InstrumentedModel,
    keep: Mapping[str, np.ndarray],
    means: Mapping[str, np.ndarray],
    sample: np.ndarray,
) -> np.ndarray:
    """Return the probabilities of the model with only some of its synapses."""
    model, output = MaskedModel(im, means), im.output_operations[0]
    return _probabilities(im, model.logits(keep, sample[None], ablation="mean", of=output)[0])


def _frequencies(slicer: "Slicer", usual: DataLike, target: int) -> dict[str, np.ndarray]:
    """Return the share of some samples' slices that contain each synapse."""
    totals = {n: np.zeros(k.shape, np.int64) for n, k in slicer.im.kernels.items()}
    samples = 0
    for part in slicer.iterate(usual, outputs=[target]):
        for name, values in part.synapses.items():
            rows = values.reshape(-1, *totals[name].shape)
            totals[name] += (rows != 0).sum(axis=0)
        samples += len(part.predicted)
    return {name: total / samples for name, total in totals.items()}


def _compare(
    im: InstrumentedModel,
    sample: np.ndarray,
    baseline: np.ndarray,
    target: int,
    methods: Iterable[str],
    contributions: np.ndarray,
) -> Comparison:
    values = {SLICE: contributions.astype(np.float64)}
    left_out = {}
    for name in methods:
        try:
            values[name] = ATTRIBUTIONS[name](im, sample, baseline, target)
        except UnsupportedLayerError as error:
            left_out[name] = str(error)
    ordered = {**values, RANDOM: np.zeros(sample.shape)}
    curves = {n: deletion_curve(im, sample, baseline, target, v) for n, v in ordered.items()}
    return Comparison(values, curves, left_out)


def _finding(
    slicer: "Slicer",
    one: Slice,
    values: Mapping[str, np.ndarray],
    probabilities: np.ndarray,
    target: int,
) -> str:
    """Say why a slice is empty or nearly complete, and whether the network is dead."""
    synapses = np.concatenate([v.ravel() for v in one.synapses.values()])
    share = float((synapses != 0).mean())
    dead = _first_constant(slicer, values)
    if not share:
        if dead:
            return (
                f"The slice is empty: from '{dead}' on, every value is the same for this sample as "
                "on average over the profiled data. Either the network is dead there (all units "
                "of a layer at zero), or the sample is the mean itself."
            )
        if slicer.theta > 1:
            return f"The slice is empty: θ = {slicer.theta:g} excludes everything; take 0.3."
        name, neuron = slicer.im.logit_operation, _neuron(slicer.im, target)
        value, mean = (a[name].flat[neuron] for a in (values, slicer.profile.means))
        if np.isclose(value, mean, rtol=1e-5, atol=0):
            return (
                f"The slice is empty: output {target} is what it is on average over the profiled "
                "data, so that nothing made it differ."
            )
        return (
            f"The slice is empty: output {target} is {value:.4g}, on average {mean:.4g}, and all "
            f"that differs together is below the share θ = {slicer.theta:g}. Take a smaller θ."
        )
    if share < _NEARLY_ALL:
        return ""
    if slicer.theta == 0:
        return (
            f"The slice has {share:.0%} of the synapses: θ = 0 excludes nothing. With θ = 0.3 only "
            "what decides is left."
        )
    if len(probabilities) > 1 and probabilities.max() * len(probabilities) < _UNDECIDED:
        return (
            f"The slice has {share:.0%} of the synapses, and the model is undecided: the largest "
            f"probability is {probabilities.max():.1%}. Its weights look untrained (random)."
        )
    return (
        f"The slice has {share:.0%} of the synapses: at θ = {slicer.theta:g} no part of the "
        "network stands out. Take a larger θ."
    )


def _first_constant(slicer: "Slicer", values: Mapping[str, np.ndarray]) -> str:
    """Return the first operation whose values all equal the profile's, or ""."""
    for operation in slicer.im.operations:
        mean = slicer.profile.means[operation.name]
        scale = max(float(np.abs(mean).max()), 1e-30)
        if np.abs(values[operation.name] - mean).max() <= 1e-6 * scale:
            return operation.name
    return ""


def _largest(sizes: np.ndarray, most: int) -> list[int]:
    """Return the indices of the `most` largest positive sizes, in descending order."""
    order = np.argsort(-sizes, kind="stable")[:most]
    return [int(i) for i in order if sizes[i] > 0]
