"""Targeted pruning by the procedure of the paper's program, and with all methods treated alike.

The program differs from the paper in how it slices (`PROGRAM`) and in what else it does to the
pruned models: those of NNSlicer and EffectivePath pass on the means of what was pruned, those of
the other methods do not. A *treatment* is what is done to a pruned model in addition.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import pruning, zoo
from nnslicer_tf._checks import check_name
from nnslicer_tf.instrument import MaskedModel
from nnslicer_tf.pruning import NNSlicerRanker
from nnslicer_tf.pruning.rankers import EffectivePathRanker
from nnslicer_tf.slicing import ClassProfiles, Profile
from reproduction.nnslicer.settings import ProgramSettings, ReadingSettings
from reproduction.nnslicer.targets import (
    Profiles,
    Rankings,
    Targets,
    TargetTask,
    load_task,
    measure,
)
from reproduction.plots import plot_methods, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable

Scores = dict[str, np.ndarray]
Scorer = Callable[[Targets], Scores]

TARGETED = "NNSlicer (targeted)"
_RATIOS = (0.3, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8)
_FIGURES = ("targets", "among_targets", "others")
_RENORMALISE_ON = 500
_POWER = 0.25
_RESAMPLES = 10_000


def _ranker(profile: Profile | ClassProfiles, **changes: Any) -> NNSlicerRanker:
    """Return the program's ranker, or a variant of it."""
    ranker = NNSlicerRanker(profile, 0.2, relative_to="sum", rectify="pass", collect="magnitudes")
    return replace(ranker, **changes)


def _by_channel(profiles: Profiles) -> ClassProfiles:
    return ClassProfiles({c: one.per_channel() for c, one in profiles.by_class.items()})


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
    "class-channels": ("mean of the class, by channel", lambda p: _ranker(_by_channel(p))),
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

    Attributes:
        said: Description in words.
        means: Methods whose models pass on the means of what was pruned; None: all.
        stem: "plain": the first kernel is pruned without means. "kept": it is not pruned.
        renormalised: Re-estimate batch normalisation statistics.
        whole_model: Prune the smallest scores of the model, not the same share of each layer;
            scores of slices and paths are multiplied by the weights.
    """

    said: str
    means: tuple[str, ...] | None = None
    stem: str = "kept"
    renormalised: bool = False
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


@dataclass(frozen=True)
class _Method:
    """A ranking method: a map from target classes to scores, and whether it depends on them."""

    scores: Scorer
    targeted: bool = False


def program(s: ProgramSettings) -> ExperimentResult:
    """Prune by all methods with each treatment (Figure 3)."""
    for name in s.treatment or ():
        check_name("treatment", name, TREATMENTS)
    task = load_task(s, PROGRAM, s.split, s.images)
    names = s.treatment or list(TREATMENTS)
    # The paper's methods by name.
    slices, paths = task.ranked["slices"], task.ranked["paths"]
    fixed = {
        "Weight": pruning.scores(task.im, "weight"),
        "Channel": pruning.scores(task.im, "channel"),
        "Random": pruning.scores(task.im, "random", rng=s.seed),
    }
    methods = {
        TARGETED: _Method(slices.total, True),
        "NNSlicer (all)": _untargeted(slices.total()),
        "EffectivePath": _Method(paths.total, True),
        **{name: _untargeted(scores) for name, scores in fixed.items()},
    }
    cases = [(name, TREATMENTS[name], method) for name in names for method in methods]
    found, rows = _measure(task, s, cases, methods, "program")
    ending = "-held-out" * s.held_out + "-all-sets" * (s.subsets == 0)
    ending = f"{s.model_name}-{s.dataset}{ending}"
    text = "\n".join(f"- {name}: {TREATMENTS[name].said}." for name in names)
    gaps = _gaps(rows, s.seed)
    title = "Targeted pruning by the program's procedure and with equal treatment (Figure 3)"
    return ExperimentResult(
        [
            ExperimentTable(
                f"pruning-{ending}", found, title, _head(task, s), f"{_TEXT}\n\n{text}"
            ),
            ExperimentTable(
                f"pruning-gaps-{ending}",
                gaps,
                f"{TARGETED} above other methods, by treatment",
                _head(task, s),
                "Points of accuracy on the targets by which slices of the targets are above the "
                "other method, with the central 95 % of means of sets drawn again (bootstrap over "
                "the sets of targets, paired); `among`: the same among target outputs alone.",
            ),
        ],
        [ExperimentFigure(f"pruning-{ending}", plot(found))],
    )


def readings(s: ReadingSettings) -> ExperimentResult:
    """Change single choices of the program's slices, with the stem kept and without means."""
    rankings: Rankings = {f"reading-{name}": rank for name, (_, rank) in READINGS.items()}
    task = load_task(s, rankings, s.split, s.images)
    methods = {
        said: _Method(task.ranked[f"reading-{name}"].total, True)
        for name, (said, _) in READINGS.items()
    }
    methods["Weight"] = _untargeted(pruning.scores(task.im, "weight"))
    plain = Treatment("no means, the stem is kept", means=())
    cases = [("plain", plain, method) for method in methods]
    found, _ = _measure(task, s, cases, methods, "readings")
    table = ExperimentTable(
        f"pruning-readings-{s.model_name}-{s.dataset}",
        found.drop(columns="treatment"),
        "What single choices of the program do to pruning",
        _head(task, s),
        f"{_TEXT} No means are handed on, and the stem is kept.",
    )
    return ExperimentResult([table])


_TEXT = (
    "Mean accuracy on images of the target classes among all outputs (`targets`) and among the "
    "target outputs alone (`among_targets`), and on the other images (`others`); `±`: standard "
    "deviation over the sets of target classes."
)


def _untargeted(scores: Scores) -> _Method:
    return _Method(lambda targets: scores)


class _Pruner:
    """Computes the logits of pruned and treated models.

    Args:
        task: The model and its data.
        profile: The means that are passed on.
    """

    def __init__(self, task: TargetTask, profile: Profile) -> None:
        self._task = task
        self._profile = profile
        self._stem = next(iter(task.im.kernels))
        self._predictors: dict[frozenset[str], MaskedModel] = {}

    def logits(
        self, treatment: Treatment, name: str, method: _Method, targets: Targets, ratio: float
    ) -> np.ndarray:
        """Return the logits of the samples to measure on."""
        task, scores = self._task, method.scores(targets)
        plain = {self._stem}
        if treatment.means is not None and name not in treatment.means:
            plain = set(task.im.kernels)
        if treatment.stem == "kept":
            scores = {kernel: one for kernel, one in scores.items() if kernel != self._stem}
        ratios: float | Mapping[str, float] = ratio
        if treatment.whole_model:
            if name not in ("Weight", "Channel", "Random"):
                scores = pruning.times_weight(task.im, scores, _POWER)
            ratios = pruning.global_ratios(scores, ratio)
        keep = pruning.keep_masks(scores, ratios)
        again = task.train.x[:_RENORMALISE_ON] if treatment.renormalised else None
        key = frozenset(plain)
        if key not in self._predictors:
            self._predictors[key] = MaskedModel(task.im, self._profile, key)
        predictor = self._predictors[key]
        return predictor.logits(keep, task.measured.x, ablation="mean", renormalise_on=again)


def _measure(
    task: TargetTask,
    s: ProgramSettings,
    cases: Sequence[tuple[str, Treatment, str]],
    methods: Mapping[str, _Method],
    kind: str,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return mean metrics and single rows of every case; rows are saved as they finish."""
    pruner = _Pruner(task, Profile.load(task.folder / "profile.npz"))
    where = f"{kind}-{task.sets}-{len(task.measured)}" + "-held-out" * s.held_out

    def logits(targets: Targets, treatment: Treatment, name: str, ratio: float) -> np.ndarray:
        return pruner.logits(treatment, name, methods[name], targets, ratio)

    jobs = [
        (
            {"treatment": label, "method": name, "ratio": ratio},
            partial(logits, treatment=treatment, name=name, ratio=ratio),
            not methods[name].targeted,
        )
        for label, treatment, name in cases
        for ratio in s.ratio or _RATIOS
    ]
    rows = measure(task, f"{where}.csv", jobs, "Pruning")
    rows["ratio"] = pd.to_numeric(rows["ratio"])
    groups = rows.groupby(["treatment", "method", "ratio"], sort=False)
    means = groups[list(_FIGURES)].mean()
    means["targets ±"] = groups["targets"].std(ddof=0)
    return means.reset_index(), rows


def _gaps(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the margin of slices of the targets over the other methods."""
    rng = np.random.default_rng(seed)
    table = rows.pivot_table(
        ["targets", "among_targets"], ["treatment", "ratio", "targets_of"], "method", sort=False
    )
    found = []
    for (treatment, ratio), part in table.groupby(level=[0, 1], sort=False):
        for other in part["targets"].columns.drop(TARGETED):
            row = {"treatment": treatment, "ratio": ratio, "above": other}
            for figure, name in (("targets", "points"), ("among_targets", "among")):
                gain = 100 * (part[figure][TARGETED] - part[figure][other]).to_numpy()
                drawn = rng.integers(len(gain), size=(_RESAMPLES, len(gain)))
                low, high = np.quantile(gain[drawn].mean(axis=1), (0.025, 0.975))
                row[name] = float(gain.mean())
                row |= {f"{name}, from": float(low), f"{name}, to": float(high)}
            found.append(row)
    return pd.DataFrame(found)


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
    rows = -(-len(treatments) // columns)
    width = max(2.9 * columns, 5.8)  # the legend needs this much
    figure = Figure(figsize=(width, 2.7 * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis, name in zip(axes.ravel(), treatments, strict=False):
        plot_methods(axis, found[found["treatment"] == name], "ratio", "targets")
        axis.set(title=name, ylim=(0, 1))
    for axis in axes.ravel()[len(treatments) :]:
        axis.set_axis_off()
    for axis in axes[-1]:
        axis.set_xlabel("share of synapses pruned")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy on targets")
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3)
    put_finding(figure, _finding(found))
    return figure


def _finding(found: pd.DataFrame) -> str:
    """Describe in words the result of the first treatment at the middle ratio of the table."""
    ratios = np.sort(found["ratio"].unique())
    at = ratios[np.abs(ratios - 0.55).argmin()]
    treatment = found["treatment"].iloc[0]
    rows = found[(found["ratio"] == at) & (found["treatment"] == treatment)]
    by_method = rows.set_index("method")["targets"].sort_values(ascending=False)
    (best, second), (first_value, next_value) = by_method.index[:2], by_method.iloc[:2]
    values = f"{best} {first_value:.1%}, {second} {next_value:.1%}"
    how = "by the program's procedure" if treatment == "program" else f"({treatment})"
    return f"{at:.0%} pruned {how}: {values}"
