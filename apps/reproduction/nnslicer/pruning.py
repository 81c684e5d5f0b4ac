"""Pruning for target classes: the paper's Figures 3 and 4, and the effect of single changes.

The paper's methods prune the same share of every layer. So do those that end in "renormalised";
they also re-estimate batch normalisation statistics after pruning, and sum the magnitudes of
each image's contributions. Those that end in "ours" multiply these magnitudes by the weights, and
prune the smallest scores of the whole model. An interrupted experiment resumes from its working
folder when it is run again.

`shrink` makes smaller models for two classes: contributions compared with class-blind rankings of
units. Units are scored, and layers fitted, on training images alone; accuracies are on test images
of the two classes, with predictions restricted to these two.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets, pruning
from nnslicer_tf.instrument import Ablation, InstrumentedModel, Zero
from nnslicer_tf.instrument.loading import load_model
from nnslicer_tf.pruning import NNSlicerRanker
from nnslicer_tf.pruning.shrinking import CONTRIBUTIONS
from reproduction.nnslicer import settings
from reproduction.nnslicer.settings import ShrinkSettings
from reproduction.nnslicer.targets import (
    ABLATED,
    RANKINGS,
    ClassScores,
    Targets,
    TargetTask,
    draw_subsets,
    load_task,
    measure,
    summary,
)
from reproduction.plots import plot_methods, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore
from reproduction.zoo.models import zoo

Scores = dict[str, np.ndarray]

ENDINGS = {
    "": "the same share of each layer",
    ", renormalised": "and normalisations measured again",
    ", ours": "the smallest of the whole model",
}
"""Endings of method names → what such methods have in common."""

RENORMALISE_ON = 500
POWER = 0.25


@dataclass(frozen=True)
class PruningMethod:
    """A pruning method."""

    scores: Callable[[Targets], Scores]
    targeted: bool = False  # whether the scores depend on the classes
    whole_model: bool = False  # prune the model's smallest scores, not the same share of each layer
    renormalised: bool = False  # re-estimate batch normalisation statistics after pruning

    @classmethod
    def fixed(cls, scores: Scores, **options: bool) -> Self:
        """Return a method with the same scores for all target classes."""
        return cls(lambda targets: scores, **options)

    def keep(self, targets: Targets, ratio: float) -> dict[str, np.ndarray]:
        """Return the masks for target classes and a ratio."""
        scores = self.scores(targets)
        ratios = pruning.global_ratios(scores, ratio) if self.whole_model else ratio
        return pruning.keep_masks(scores, ratios)


def ending_of(method: str) -> str:
    """Return the key of `ENDINGS` that a method's name ends in."""
    return next(ending for ending in reversed(ENDINGS) if method.endswith(ending))


def paper_methods(task: TargetTask, seed: int, slices: str = "slices") -> dict[str, PruningMethod]:
    """Return the paper's methods by name; `slices` names the ranking by contributions."""
    fixed, of_slices = PruningMethod.fixed, task.ranked[slices].total
    return {
        "NNSlicer (targeted)": PruningMethod(of_slices, targeted=True),
        "NNSlicer (all)": fixed(of_slices()),
        "EffectivePath": PruningMethod(task.ranked["paths"].total, targeted=True),
        "Weight": fixed(pruning.scores(task.im, "weight")),
        "Channel": fixed(pruning.scores(task.im, "channel")),
        "Random": fixed(pruning.scores(task.im, "random", rng=seed)),
    }


def pruning_methods(task: TargetTask, seed: int) -> dict[str, PruningMethod]:
    """Return the methods of Figures 3 and 4 by name."""
    im, magnitudes = task.im, task.ranked["magnitudes"]
    methods, again = paper_methods(task, seed), paper_methods(task, seed, "magnitudes")
    methods |= {f"{n}, renormalised": replace(m, renormalised=True) for n, m in again.items()}
    of_all = PruningMethod.fixed(pruning.times_weight(im, magnitudes.total(), POWER))
    ours = {
        "NNSlicer (targeted)": PruningMethod(_times_weight(im, magnitudes), targeted=True),
        "NNSlicer (all)": of_all,
        "EffectivePath": PruningMethod(_times_weight(im, task.ranked["paths"]), targeted=True),
        "Weight": methods["Weight"],
    }
    return methods | {f"{n}, ours": replace(m, whole_model=True) for n, m in ours.items()}


def changes(task: TargetTask) -> dict[str, PruningMethod]:
    """Return variants of the paper's procedure and of pruning by weight, one change at a time."""
    im, ranked = task.im, task.ranked
    slices, magnitudes = ranked["slices"], ranked["magnitudes"]
    finer, weighted = (_times_weight(im, scores) for scores in (magnitudes, ranked["amounts"]))
    targeted = partial(PruningMethod, targeted=True)
    by_weight = partial(PruningMethod.fixed, pruning.scores(im, "weight"))
    again = {"renormalised": True}
    measured, smallest = "normalisations measured again", "smallest of the model"
    power = "magnitudes of each image, ^ 0.25 × weight"
    return {
        "paper: θ = 0.3, activations, images that the model is right on": targeted(slices.total),
        "θ = 0": targeted(ranked["theta0"].total),
        "θ = 1": targeted(ranked["theta1"].total),
        "channels as neurons": targeted(ranked["channels"].total),
        "images that the model is wrong on too": targeted(ranked["all-samples"].total),
        "ties by weight": targeted(lambda targets: _ties_by_weight(im, slices.total(targets))),
        "contributions × weight": targeted(_times_weight(im, slices, 1.0)),
        "magnitudes of each image": targeted(magnitudes.total),
        "amounts of each image": targeted(ranked["amounts"].total),
        power: targeted(finer),
        measured: targeted(slices.total, **again),
        f"magnitudes of each image, {measured}": targeted(magnitudes.total, **again),
        f"amounts of each image, {measured}": targeted(ranked["amounts"].total, **again),
        f"amounts of each image, {smallest}": targeted(ranked["amounts"].total, whole_model=True),
        f"{power}, {measured}": targeted(finer, **again),
        f"ours: magnitudes ^ 0.25 × weight, {smallest}": targeted(finer, whole_model=True),
        f"amounts ^ 0.25 × weight, {smallest}": targeted(weighted, whole_model=True),
        "Weight": by_weight(),
        f"Weight, {measured}": by_weight(**again),
        f"Weight, {smallest}": by_weight(whole_model=True),
    }


def _times_weight(
    im: InstrumentedModel, scores: ClassScores, power: float = POWER
) -> Callable[[Targets], Scores]:
    return lambda targets: pruning.times_weight(im, scores.total(targets), power)


def _ties_by_weight(im: InstrumentedModel, scores: Scores) -> Scores:
    """Return scores that order synapses by |score|, and ties by |weight|."""
    weights = {name: np.abs(im.kernels[name].kernel().astype(np.float64)) for name in scores}
    tiny = np.finfo(np.float64).tiny
    return {n: np.abs(scores[n]) + w / max(w.max(), tiny) / 2 for n, w in weights.items()}


_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95)
_TUNED_RATIOS = (0.7, 0.8, 0.9, 0.95)


Logits = Callable[..., np.ndarray]  # of a method, target classes and a ratio


def curves(s: settings.CurveSettings) -> ExperimentResult:
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
    source = "The paper: see data/paper/nnslicer/figure3.csv."
    text = "\n\n".join((note("pruning"), "\n".join(verdict), source))
    name = f"figure3-{task.sets}" if s.subsets else "figure3"
    title = "Targeted pruning (Figure 3)"
    table = ExperimentTable(name, found, title, _head(task, s), text)

    return ExperimentResult([table], [ExperimentFigure(name, plot(found))])


def fine_tuned(s: settings.FineTuningSettings) -> ExperimentResult:
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
    text = f"{note('pruning')} The images of the epoch are of all classes."
    title = "After one epoch of training (Figure 4)"
    table = ExperimentTable("figure4", found, title, head, text)
    return ExperimentResult([table], [ExperimentFigure("figure4", plot(found))])


def ablation(s: settings.AblationSettings) -> ExperimentResult:
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
    return ExperimentResult([ExperimentTable("ablation", found, title, head, note("pruning"))])


def logits_of(
    ablation: Ablation, masks: dict[str, np.ndarray], x: np.ndarray, images: np.ndarray | None
) -> np.ndarray:
    """Return a masked model's logits; `images` serve to measure normalisations again."""
    if images is None:
        return ablation.outputs(masks, x)
    model = pruning.renormalise(ablation.model(masks), images)
    return InstrumentedModel(model).logits(x)


def _masked(task: TargetTask) -> Logits:
    """Return a function that computes the logits of a pruned model."""
    ablation = Ablation(task.im, Zero(), "weight")

    def logits(method: PruningMethod, targets: Targets, ratio: float) -> np.ndarray:
        images = task.train.x[:RENORMALISE_ON] if method.renormalised else None
        masks = pruning.weight_masks(ablation.im, method.keep(targets, ratio))
        return logits_of(ablation, masks, task.measured.x, images)

    return logits


def _measure(
    task: TargetTask, methods: dict, ratios: Sequence[float], kind: str, logits: Logits
) -> pd.DataFrame:
    """Return the mean metrics of every method and ratio; rows are saved as they finish."""
    cases = []
    for name, method in methods.items():
        for ratio in ratios:
            shared = not method.targeted or ratio == 0
            case = {"method": name, "ratio": ratio}
            cases.append((case, partial(logits, method, ratio=ratio), shared))
    rows = measure(task, f"{kind}-{task.sets}.csv", cases, "Pruning")
    return summary(rows, ["method", "ratio"], ["targets", "others", "among_targets"])


def _head(task: TargetTask, s: settings.RatioSettings) -> dict[str, object]:
    accuracy = zoo.accuracy(task.im.model, task.measured)
    return {
        "model": f"{s.model_name} on {s.dataset}, {accuracy:.1%} of the test images",
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
        finding = f"With {at:.0%} pruned, NNSlicer keeps {mine.min():.1%} to {mine.max():.1%}"
        finding += f" on target classes, the best of all {best}"
    return put_finding(figure, finding)


_KEYS = ("method", "epochs", "classes")
_AMOUNTS = NNSlicerRanker(
    theta=0.0, progress=False, collect="magnitudes", contribution="amount", correct_only=False
)
_METHODS = {"contributions": CONTRIBUTIONS, "Amounts": _AMOUNTS, "Weight": "weight"}
_METHODS |= {"Channel": "channel", "Random": "random"}


def shrink(s: ShrinkSettings) -> ExperimentResult:
    """Shrink a model for pairs of classes, using several rankings of units."""
    im = InstrumentedModel(load_model(s.file) if s.file else zoo.load(s.model, s.dataset))
    train = datasets.load(s.dataset, s.train, normalise=s.normalise)
    test = datasets.load(s.dataset, "test", normalise=s.normalise)
    pairs = draw_subsets(train.classes, 2, s.pairs, s.seed)
    stem = f"shrink-{s.file.stem if s.file else s.model}-{s.dataset}"
    fields = ("train", "normalise", "ratio", "seed")
    store = RowStore.of(s, stem, _KEYS, *fields, weights=im.fingerprint)

    def shrunk(method: str, epochs: int, classes: str) -> list[dict[str, float]]:
        options = {"ratio": s.ratio, "by": _METHODS[method], "epochs": epochs}
        targets = [int(c) for c in classes.split("+")]
        found = pruning.shrink(
            im, train, classes=targets, **options, test=test, rng=s.seed, progress=False
        )
        left = found.to_frame().set_index("what")["left"]
        before, after = found.accuracy
        named = ("parameters", "multiply-adds", "Keras, ms", "LiteRT, ms", "LiteRT file, bytes")
        short = ("parameters", "multiply-adds", "Keras", "LiteRT", "file")
        figures = {f"{name} left": left[of] for name, of in zip(short, named, strict=True)}
        return [figures | {"before": before, "after": after}]

    named = ["+".join(map(str, pair)) for pair in pairs]
    cases = itertools.product(s.method or _METHODS, s.epochs or [0], named)
    table = store.fill([dict(zip(_KEYS, case, strict=True)) for case in cases], shrunk, "Models")
    lost = 100 * (table["before"] - table["after"])
    table_of_means = table.assign(**{"points lost": lost, "most points lost": lost})
    groups = table_of_means.drop(columns="classes").groupby(["method", "epochs"], sort=False)
    largest = groups["most points lost"].max()
    means = groups.mean().assign(**{"most points lost": largest}).reset_index()
    head = {
        "model": f"{s.file.name if s.file else s.model} on {s.dataset} ({s.normalise}), "
        f"{im.model.count_params():,} parameters",
        "images": f"{s.train} to score, fit and train; {len(test):,} test images",
        "ratio": f"{s.ratio} of the parameters, the same share of every layer",
        "pairs of classes": ", ".join(named),
        "seed": s.seed,
    }
    title = f"Smaller models for two classes: {head['model']}"
    pairs_table = ExperimentTable(f"{stem}-pairs", table)
    table = ExperimentTable(stem, means, title, head, note("shrink"))
    return ExperimentResult([table, pairs_table])
