"""Pruning for target classes: the paper's Figures 3 and 4, and the effect of single changes.

An interrupted experiment resumes from its working folder when it is run again.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import pruning, zoo
from reproduction.nnslicer.pruning_methods import (
    ENDINGS,
    RENORMALISE_ON,
    PruningMethod,
    changes,
    ending_of,
    pruning_methods,
)
from reproduction.nnslicer.settings import (
    AblationSettings,
    CurveSettings,
    FineTuningSettings,
    RatioSettings,
)
from reproduction.nnslicer.targets import (
    ABLATED,
    RANKINGS,
    Targets,
    TargetTask,
    load_task,
    measure,
    summary,
)
from reproduction.plots import plot_methods, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable
from reproduction.views import view_of_marks

_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95)
_TUNED_RATIOS = (0.7, 0.8, 0.9, 0.95)

# Methods and prune ratio of the interactive view.
_SHOWN = ("NNSlicer (targeted)", "NNSlicer (all)", "EffectivePath", "Weight")
_DRAWN = 0.5

_PLAIN = (
    "Mean accuracy over the sets of target classes (`±`: standard deviation over the sets): on "
    "images of the target classes, on those of the others, and on those of the target "
    "classes where only a target class may be predicted."
)

Logits = Callable[..., np.ndarray]  # of a method, target classes and a ratio


def curves(s: CurveSettings) -> ExperimentResult:
    """Measure accuracy without fine-tuning by prune ratio (Figure 3)."""
    task = load_task(s, RANKINGS)
    methods, ratios = pruning_methods(task, s.seed), s.ratio or _RATIOS
    found = _measure(task, methods, ratios, "curves", _masked(task))
    # Whether the goals are reached, in words.
    targets_at = found.pivot(index="ratio", columns="method", values="targets")
    verdict = []
    for ending in ENDINGS:
        mine = f"NNSlicer (targeted){ending}"
        rivals = [c for c in targets_at if c != mine and ending_of(c) == ending]
        large = targets_at[targets_at.index >= 0.4]
        behind = large.index[large[mine] <= large[rivals].max(axis=1)]
        where = ", ".join(f"{ratio:g}" for ratio in behind)
        said = f"not above all others at {where}" if where else "above all others"
        verdict.append(f"- {mine}: from 40 % pruned up it is {said}.")
        if 0.6 in targets_at.index:
            share = targets_at.loc[0.6, mine]
            verdict.append(f"- {mine}: {share:.1%} at 60 % pruned (goal: 80 %).")
    text = "\n\n".join(
        (_PLAIN, "\n".join(verdict), "The paper: see data/paper/nnslicer/figure3.csv.")
    )
    name = f"figure3-{task.sets}" if s.subsets else "figure3"
    title = "Targeted pruning (Figure 3)"
    table = ExperimentTable(name, found, title, _head(task, s), text)

    # The weights that methods keep for the first set of target classes.
    targets, ratio = task.subsets[0], min(s.ratio or [_DRAWN], key=lambda r: abs(r - _DRAWN))

    def kept() -> dict[str, dict[str, np.ndarray]]:
        return {name: methods[name].keep(targets, ratio) for name in _SHOWN}

    classes = ", ".join(map(str, targets))
    title = f"Weights of {s.model_name} that are kept for the classes {classes} at ratio {ratio:g}"
    views = view_of_marks(s.explore, task.im, kept, title)
    return ExperimentResult([table], [ExperimentFigure(name, plot(found))], views=views)


def fine_tuned(s: FineTuningSettings) -> ExperimentResult:
    """Measure accuracy after one epoch of training by prune ratio (Figure 4)."""
    task = load_task(s, RANKINGS)
    # Training updates the normalisations anyway.
    methods = {n: m for n, m in pruning_methods(task, s.seed).items() if not m.renormalised}
    chosen = np.random.default_rng(s.seed).permutation(len(task.train))[: s.images]
    x, y = task.train.x[chosen], task.train.y[chosen]

    def logits(method: PruningMethod, targets: Targets, ratio: float) -> np.ndarray:
        pruned = pruning.apply_masks(task.im.model, method.keep(targets, ratio))
        tuned = pruning.fine_tune(pruned, x, y, rng=s.seed, progress=False)
        return tuned.predict(task.measured.x, batch_size=200, verbose=0)

    found = _measure(task, methods, s.ratio or _TUNED_RATIOS, f"tuned-{s.images}", logits)
    head = {**_head(task, s), "images": s.images}
    text = f"{_PLAIN} The images of the epoch are of all classes."
    title = "After one epoch of training (Figure 4)"
    table = ExperimentTable("figure4", found, title, head, text)
    return ExperimentResult([table], [ExperimentFigure("figure4", plot(found))])


def ablation(s: AblationSettings) -> ExperimentResult:
    """Measure choices that the paper leaves open, and our changes, on held-out images."""
    task = load_task(s, ABLATED, "train[90%:]", s.images)
    name = f"ablation-{s.images}"
    found = _measure(task, changes(task), s.ratio or (0.4, 0.6), name, _masked(task))
    head = {
        "model": f"{s.model_name} on {s.dataset}",
        "samples": f"{s.samples} training images of each class to rank by, {s.profiled:,} of the "
        f"profile, {len(task.measured):,} held-out images to measure on",
        "sets": task.sets_in_words,
        "seed": s.seed,
    }
    title = "What each change does to pruning"
    return ExperimentResult([ExperimentTable("ablation", found, title, head, _PLAIN)])


def _masked(task: TargetTask) -> Logits:
    """Return a function that computes the logits of a pruned model without building it."""
    predictor = pruning.MaskedPredictor(task.im)

    def logits(method: PruningMethod, targets: Targets, ratio: float) -> np.ndarray:
        images = task.train.x[:RENORMALISE_ON] if method.renormalised else None
        keep = method.keep(targets, ratio)
        return predictor.logits(keep, task.measured.x, renormalise_on=images)

    return logits


def _measure(
    task: TargetTask,
    methods: dict[str, PruningMethod],
    ratios: Sequence[float],
    kind: str,
    logits: Logits,
) -> pd.DataFrame:
    """Return the mean metrics of every method and ratio; rows are saved as they finish."""
    cases = [
        (
            {"method": name, "ratio": ratio},
            partial(logits, method, ratio=ratio),
            not method.targeted or ratio == 0,
        )
        for name, method in methods.items()
        for ratio in ratios
    ]
    rows = measure(task, f"{kind}-{task.sets}.csv", cases, "Pruning")
    return summary(rows, ["method", "ratio"], ["targets", "others", "among_targets"])


def _head(task: TargetTask, s: RatioSettings) -> dict[str, object]:
    accuracy = zoo.accuracy(task.im.model, task.measured)
    return {
        "model": f"{s.model_name} on {s.dataset}, {accuracy:.1%} of all test images",
        "samples": f"{s.samples} training images of each class to rank by (the model is right on "
        f"them), {min(s.profiled, len(task.train)):,} of the profile, "
        f"{len(task.measured):,} test images",
        "sets": task.sets_in_words,
        "seed": s.seed,
    }


def plot(found: pd.DataFrame) -> Figure:
    """Plot accuracy on target classes over the ratio, with a panel for each ending of the names."""
    table = found.assign(ending=found["method"].map(ending_of))
    table["method"] = table["method"].str.partition(", ")[0]
    endings = [ending for ending in ENDINGS if (table["ending"] == ending).any()]
    figure = Figure(figsize=(max(7.0, 2.9 * len(endings)), 3.8), layout="constrained")
    axes = figure.subplots(1, len(endings), sharey=True, squeeze=False)[0]
    for axis, ending in zip(axes, endings, strict=True):
        plot_methods(axis, table[table["ending"] == ending], "ratio", "targets")
        axis.set_xlabel("share of synapses pruned")
        axis.set_title(ENDINGS[ending], fontsize=10)
    axes[0].set_ylabel("accuracy on target classes")
    # The panel with the most methods has all of them.
    named = max((axis.get_legend_handles_labels() for axis in axes), key=lambda pair: len(pair[0]))
    figure.legend(*named, loc="outside lower center", ncols=3)
    # The finding: where NNSlicer's ranking stands at the middle ratio.
    ratios = np.sort(table["ratio"].unique())
    at = ratios[np.abs(ratios - 0.6).argmin()]
    rows = table[table["ratio"] == at]
    best = f"{rows['targets'].max():.1%}"
    mine = rows.loc[rows["method"] == "NNSlicer (targeted)", "targets"]
    finding = f"Accuracy on target classes, {at:.0%} pruned: {best} at most"
    if len(mine):
        finding = (
            f"With {at:.0%} pruned, NNSlicer keeps {mine.min():.1%} to {mine.max():.1%} on target "
            f"classes, the best of all {best}"
        )
    put_finding(figure, finding)
    return figure
