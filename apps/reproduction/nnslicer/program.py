"""Targeted pruning by the procedure of the paper's program, and with all methods treated alike.

The program differs from the paper in how it slices (`PROGRAM`) and in what else it does to the
pruned models: those of NNSlicer and EffectivePath pass on the means of what was pruned, those of
the other methods do not. A *treatment* is what is done to a pruned model in addition.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import pruning, zoo
from nnslicer_tf._checks import check_name
from nnslicer_tf.instrument import Ablation, Mean, Zero
from nnslicer_tf.pruning import NNSlicerRanker
from nnslicer_tf.slicing import Profile
from reproduction.nnslicer.class_profiles import ClassProfiles
from reproduction.nnslicer.effective_path import EffectivePathRanker
from reproduction.nnslicer.pruning import (
    POWER,
    RENORMALISE_ON,
    PruningMethod,
    logits_of,
    paper_methods,
)
from reproduction.nnslicer.settings import ProgramSettings, ReadingSettings
from reproduction.nnslicer.targets import (
    Profiles,
    Rankings,
    Targets,
    TargetTask,
    load_task,
    measure,
    summary,
)
from reproduction.plots import plot_methods, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note

TARGETED = "NNSlicer (targeted)"
_RATIOS = (0.3, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8)
_RESAMPLES = 10_000


def _ranker(profile: Profile | ClassProfiles, **changes: Any) -> NNSlicerRanker:
    """Return the program's ranker, or a variant of it."""
    ranker = NNSlicerRanker(profile, 0.2, relative_to="sum", rectify="pass", collect="magnitudes")
    return replace(ranker, **changes)


PROGRAM: Rankings = {
    "slices": lambda profiles: _ranker(profiles.by_class),
    "paths": lambda profiles: EffectivePathRanker(),
}
"""Name → the program's ranking."""

READINGS: dict[str, tuple[str, Callable[[Profiles], NNSlicerRanker]]] = {
    "program": ("as the program", lambda p: _ranker(p.by_class)),
    "output": (
        "excluded relative to the output, not the sum",
        lambda p: _ranker(p.by_class, relative_to="output"),
    ),
    "sign": (
        "signs at ReLUs and normalisations (Table 2)",
        lambda p: _ranker(p.by_class, rectify="sign"),
    ),
    "whole": ("mean of all images", lambda p: _ranker(p.whole)),
    "class-channels": (
        "mean of the class, by channel",
        lambda p: _ranker(ClassProfiles({c: q.per_channel() for c, q in p.by_class.items()})),
    ),
    "netted": ("contributions netted (Eq. 4)", lambda p: _ranker(p.by_class, collect="netted")),
    "samples": ("images counted", lambda p: _ranker(p.by_class, collect="samples")),
    "theta01": ("θ = 0.1", lambda p: _ranker(p.by_class, theta=0.1)),
    "theta0": ("θ = 0", lambda p: _ranker(p.by_class, theta=0.0)),
    "words": ("the paper's words", lambda p: NNSlicerRanker(profile=p.whole)),
    "words-magnitudes": (
        "the paper's words, but magnitudes",
        lambda p: NNSlicerRanker(profile=p.whole, collect="magnitudes"),
    ),
}
"""Name → what differs, and the ranking."""


@dataclass(frozen=True)
class Treatment:
    """What is done to a pruned model in addition.

    `whole_model`: prune the smallest scores of the model, not the same share of each layer; scores
    of slices and paths are multiplied by the weights.
    """

    said: str
    means: tuple[str, ...] | None = None  # methods that pass on means of what was pruned; None: all
    stem: str = "kept"  # the first kernel is not pruned; "plain": it is, without means
    renormalised: bool = False  # re-estimate batch normalisation statistics
    whole_model: bool = False


TREATMENTS = {
    "program": Treatment(
        "as the program: means for NNSlicer and EffectivePath, the stem pruned without",
        means=(TARGETED, "NNSlicer (all)", "EffectivePath"),
        stem="plain",
    ),
    "no means": Treatment("no method has means, the stem is pruned", means=(), stem="plain"),
    "means for all": Treatment("all methods have means, the stem is pruned without", stem="plain"),
    "stem kept": Treatment("all methods have means, the stem is kept"),
    "fair": Treatment("the same, normalisations are measured again", renormalised=True),
    "fair, whole model": Treatment(
        "the same, the smallest of the whole model go first", renormalised=True, whole_model=True
    ),
}
"""Name → treatment, from the program's to those in which all methods are treated alike."""


def program(s: ProgramSettings) -> ExperimentResult:
    """Prune by all methods with each treatment (Figure 3)."""
    for name in s.treatment or ():
        check_name("treatment", name, TREATMENTS)
    task = load_task(s, PROGRAM, s.split, s.images)
    names = s.treatment or list(TREATMENTS)
    methods = paper_methods(task, s.seed)
    cases = [(name, TREATMENTS[name], method) for name in names for method in methods]
    means, rows = _measure(task, s, cases, methods, "program")

    # The margin of slices of the targets over the other methods, by a bootstrap over the sets.
    rng = np.random.default_rng(s.seed)
    keys, figures = ["treatment", "ratio", "targets_of"], ["targets", "among_targets"]
    table = rows.pivot_table(figures, keys, "method", sort=False)
    gaps = []
    for (treatment, ratio), part in table.groupby(level=[0, 1], sort=False):
        for other in part["targets"].columns.drop(TARGETED):
            row = {"treatment": treatment, "ratio": ratio, "above": other}
            for figure, name in (("targets", "points"), ("among_targets", "among")):
                gain = 100 * (part[figure][TARGETED] - part[figure][other]).to_numpy()
                drawn = rng.integers(len(gain), size=(_RESAMPLES, len(gain)))
                low, high = np.quantile(gain[drawn].mean(axis=1), (0.025, 0.975))
                row[name] = float(gain.mean())
                row |= {f"{name}, from": float(low), f"{name}, to": float(high)}
            gaps.append(row)

    ending = "-held-out" * s.held_out + "-all-sets" * (s.subsets == 0)
    ending = f"{s.model_name}-{s.dataset}{ending}"
    head = _head(task, s)
    treatments = "\n".join(f"- {name}: {TREATMENTS[name].said}." for name in names)
    name, text = f"pruning-{ending}", f"{note('program')}\n\n{treatments}"
    title = "Targeted pruning by the program's procedure and with equal treatment (Figure 3)"
    above = f"{TARGETED} above other methods, by treatment"
    margins = ExperimentTable(
        f"pruning-gaps-{ending}", pd.DataFrame(gaps), above, head, note("gaps")
    )
    tables = [ExperimentTable(name, means, title, head, text), margins]
    return ExperimentResult(tables, [ExperimentFigure(name, plot(means))])


def readings(s: ReadingSettings) -> ExperimentResult:
    """Change single choices of the program's slices, with the stem kept and without means."""
    rankings: Rankings = {f"reading-{name}": rank for name, (_, rank) in READINGS.items()}
    task = load_task(s, rankings, s.split, s.images)
    methods = {
        said: PruningMethod(task.ranked[f"reading-{name}"].total, targeted=True)
        for name, (said, _) in READINGS.items()
    }
    methods["Weight"] = PruningMethod.fixed(pruning.scores(task.im, "weight"))
    plain = Treatment("no means, the stem is kept", means=())
    means, _ = _measure(task, s, [("plain", plain, name) for name in methods], methods, "readings")
    name = f"pruning-readings-{s.model_name}-{s.dataset}"
    text = f"{note('program')} No means are handed on, and the stem is kept."
    means = means.drop(columns="treatment")
    title = "What single choices of the program do to pruning"
    return ExperimentResult([ExperimentTable(name, means, title, _head(task, s), text)])


def _measure(
    task: TargetTask, s: ProgramSettings, cases: Sequence, methods: Mapping, kind: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return mean metrics and single rows of every case; rows are saved as they finish."""
    im, stem = task.im, next(iter(task.im.kernels))
    profile = Profile.load(task.folder / "profile.npz")

    @cache
    def ablation_of(without_means: frozenset[str]) -> Ablation:
        """Return the ablation in which synapses of all kernels but some contribute their mean."""
        if without_means == frozenset(im.kernels):
            return Ablation(im, Zero())
        read = [o.inputs[0] for o in im.operations if getattr(o.params, "name", "") == stem]
        return Ablation(im, Mean({**profile.means, **{n: 0 * profile.means[n] for n in read}}))

    def logits(targets: Targets, treatment: Treatment, name: str, ratio: float) -> np.ndarray:
        """Return the logits of a pruned and treated model."""
        scores = methods[name].scores(targets)
        without_means = {stem}
        if treatment.means is not None and name not in treatment.means:
            without_means = set(im.kernels)
        if treatment.stem == "kept":
            scores = {kernel: one for kernel, one in scores.items() if kernel != stem}
        ratios: float | Mapping[str, float] = ratio
        if treatment.whole_model:
            if name not in ("Weight", "Channel", "Random"):
                scores = pruning.times_weight(im, scores, POWER)
            ratios = pruning.global_ratios(scores, ratio)
        keep = pruning.keep_masks(scores, ratios)
        images = task.train.x[:RENORMALISE_ON] if treatment.renormalised else None
        return logits_of(ablation_of(frozenset(without_means)), keep, task.measured.x, images)

    jobs = []
    for (label, treatment, name), ratio in itertools.product(cases, s.ratio or _RATIOS):
        pruned = partial(logits, treatment=treatment, name=name, ratio=ratio)
        case = {"treatment": label, "method": name, "ratio": ratio}
        jobs.append((case, pruned, not methods[name].targeted))
    file = f"{kind}-{task.sets}-{len(task.measured)}" + "-held-out" * s.held_out + ".csv"
    rows = measure(task, file, jobs, "Pruning")
    keys = ["treatment", "method", "ratio"]
    return summary(rows, keys, ["targets", "among_targets", "others"]), rows


def _head(task: TargetTask, s: ProgramSettings) -> dict[str, object]:
    accuracy = zoo.accuracy(task.im.model, task.measured)
    images = "held-out training" if s.held_out else "test"
    return {
        "model": f"{s.model_name} on {s.dataset}, {accuracy:.1%} of the images measured on",
        "samples": f"{s.samples} training images of each class to rank by (those that the model is "
        f"right on), means of {s.profiled:,}, {len(task.measured):,} {images} images to measure on",
        "sets": task.sets_in_words,
        "seed": s.seed,
    }


def plot(found: pd.DataFrame) -> Figure:
    """Plot accuracy on the targets over the ratio, with a panel for each treatment."""
    treatments = list(found["treatment"].unique())
    columns = math.ceil(math.sqrt(len(treatments)))
    lines = -(-len(treatments) // columns)
    width = max(2.9 * columns, 5.8)  # the legend needs this much
    figure = Figure(figsize=(width, 2.7 * lines + 0.9), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axis, name in zip(axes.ravel(), treatments, strict=False):
        plot_methods(axis, found[found["treatment"] == name], "ratio", "targets")
        axis.set(title=name, ylim=(0, 1))
    for axis in axes.ravel()[len(treatments) :]:
        axis.set_axis_off()
    for axis in axes[-1]:
        axis.set_xlabel("share of synapses pruned")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy on targets")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    # The finding: the first treatment at the middle ratio.
    ratios = np.sort(found["ratio"].unique())
    at = ratios[np.abs(ratios - 0.55).argmin()]
    rows = found[(found["ratio"] == at) & (found["treatment"] == treatments[0])]
    best = rows.set_index("method")["targets"].sort_values(ascending=False)[:2]
    values = ", ".join(f"{name} {value:.1%}" for name, value in best.items())
    how = "by the program's procedure" if treatments[0] == "program" else f"({treatments[0]})"
    return put_finding(figure, f"{at:.0%} pruned {how}: {values}")
