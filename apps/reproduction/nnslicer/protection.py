"""Selective protection: the paper's Figure 5.

Each method hides half of the synapses of every layer, those that target classes need most;
attackers retrain the model with budgets of training images. The method "Everything" hides all
synapses. The accuracy that attackers reach then is due to their images alone, and no choice of
hidden synapses can prevent it. An interrupted experiment resumes from its working folder when it
is run again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import protection, pruning
from nnslicer_tf._checks import check_name
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.nnslicer.settings import ProtectionSettings
from reproduction.nnslicer.targets import (
    ABLATED,
    RANKINGS,
    Targets,
    TargetTask,
    load_task,
    measure,
    set_name,
    summary,
)
from reproduction.plots import plot_at_one_place, plot_methods, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, ExperimentView
from reproduction.samples import of_classes
from reproduction.views import view_of_marks

BUDGETS = (1_000, 2_000, 5_000, 10_000, 20_000, 45_000)

METHODS = (
    *("NNSlicer", "EffectivePath", "Weight", "Random"),
    *("NNSlicer, θ = 0", "NNSlicer, ours", "Everything"),
)

_ATTACKERS = {
    "all": "train all weights",
    "hidden": "train the hidden weights alone",
    "known": "train all but the hidden weights, whose synapses are left out",
}
_ENDINGS = {"all": "", "hidden": "-hidden", "known": "-known"}
_TEXT = (
    "Mean accuracy of the retrained models on test images of the target classes, of the other "
    "classes, and of all (`±`: standard deviation over sets and repetitions, `attacks` in number). "
    "A method that hides the same for every set is attacked once per repetition, and the retrained "
    "model measured on every set. Low on the targets "
    "is good protection. `Everything`: all synapses are hidden; attackers who train them have what "
    "their images give, those who do without them have no network. "
    "The paper: below 10 % on the targets with every budget, the others "
    "above 30 %, EffectivePath 90 % (data/paper/nnslicer/figure5.csv)."
)

Masks = dict[str, np.ndarray]


@dataclass(frozen=True)
class _Method:
    """A method of choosing what to hide.

    Attributes:
        hidden: Maps target classes and the repetition to the hidden synapses.
        targeted: Whether they depend on the classes.
    """

    hidden: Callable[[Targets, int], Masks]
    targeted: bool = False


def protect(s: ProtectionSettings) -> ExperimentResult:
    """Hide synapses, let attackers retrain, and measure their accuracy (Figure 5)."""
    for name in s.method or ():
        check_name("method", name, METHODS)
    task = load_task(s, RANKINGS | {"theta0": ABLATED["theta0"]})
    known = {
        t: of_classes(task.train, t, invert=True) if s.without_targets else task.train
        for t in task.subsets
    }
    # The requested budgets, or the default ones for which there are images.
    largest = min(map(len, known.values()))
    impossible = [budget for budget in s.budget or () if not 0 < budget <= largest]
    if impossible:
        raise InvalidArgumentError(
            f"A budget is 1 to {largest:,} images here. Received: {impossible[0]}"
        )
    budgets = s.budget or [budget for budget in BUDGETS if budget <= largest]
    ending = _ENDINGS[s.trains] + "-others" * s.without_targets
    rows = _attack(task, known, budgets, s, f"attacks-{s.share}-{s.epochs}{ending}.csv")
    found = summary(rows, "budget", ["targets", "others", "all"])
    found["attacks"] = rows.groupby(["method", "budget"], sort=False).size().to_numpy()
    head = {
        "model": f"{s.model_name} on {s.dataset}",
        "samples": f"{s.samples} images of each class to rank by, "
        f"{min(s.profiled, len(task.train)):,} of the profile, {len(task.measured):,} test images",
        "attacks": f"{s.share:.0%} of each layer hidden, {s.epochs} epochs, {s.repetitions} "
        f"repetitions, targets {', '.join(map(set_name, task.subsets))}",
        "attackers": _ATTACKERS[s.trains]
        + (", have no images of target classes" if s.without_targets else ""),
        "seed": s.seed,
    }
    name, title = f"figure5{ending}", "Selective protection (Figure 5)"
    tables = [
        ExperimentTable(name, found, title, head, _TEXT),
        ExperimentTable(f"attacks{ending}", rows),
    ]
    return ExperimentResult(tables, [ExperimentFigure(name, plot(found))], views=_views(s, task))


def _views(s: ProtectionSettings, task: TargetTask) -> list[ExperimentView]:
    """Return a view of the weights that methods hide for the first set of target classes."""
    targets = task.subsets[0]
    names = [name for name in s.method or METHODS[:4] if name != "Everything"]

    def hidden() -> dict[str, Masks]:
        methods = _methods(task, s.share, s.seed)
        return {name: methods[name].hidden(targets, 0) for name in names}

    title = f"Weights of {s.model_name} that are hidden for the classes {set_name(targets)}"
    return view_of_marks(s.explore, task.im, hidden, title)


def _attack(
    task: TargetTask,
    known: dict[Targets, Dataset],
    budgets: Sequence[int],
    s: ProtectionSettings,
    file: str,
) -> pd.DataFrame:
    """Return the metrics of every attack on every set; rows are saved as they finish."""
    attacker = protection.Attacker(s.epochs, trains=s.trains, progress=False)
    methods = _methods(task, s.share, s.seed)

    def stolen(targets: Targets, name: str, images: int, repetition: int) -> np.ndarray:
        hidden, seed = methods[name].hidden(targets, repetition), s.seed + repetition
        model = protection.steal(task.im.model, hidden, known[targets], images, attacker, seed)
        return InstrumentedModel(model).logits(task.measured.x)

    cases = [
        (
            {"method": name, "budget": images, "repetition": repetition},
            partial(stolen, name=name, images=images, repetition=repetition),
            not (methods[name].targeted or s.without_targets),
        )
        for name in dict.fromkeys(s.method or METHODS)
        for images in budgets
        for repetition in range(s.repetitions)
    ]
    return measure(task, file, cases, "Attacks")


def _methods(task: TargetTask, share: float, seed: int) -> dict[str, _Method]:
    """Return the methods by name."""
    weight, ranked = pruning.scores(task.im, "weight"), task.ranked

    def by_class(scores: pruning.ClassScores) -> _Method:
        return _Method(lambda targets, _: protection.select(scores.total(targets), share), True)

    def random(_: Targets, repetition: int) -> Masks:
        scores = pruning.scores(task.im, "random", rng=seed + repetition)
        return protection.select(scores, share)

    found = (
        by_class(ranked["slices"]),
        by_class(ranked["paths"]),
        _Method(lambda *_: protection.select(weight, share)),
        _Method(random),
        by_class(ranked["theta0"]),
        by_class(ranked["magnitudes"]),
        _Method(lambda *_: protection.select(weight, 1.0)),
    )
    return dict(zip(METHODS, found, strict=True))


def plot(found: pd.DataFrame) -> Figure:
    """Plot the attackers' accuracy over their number of images, with a line for each method.

    With only one number of images, there is a bar for each method.
    """
    figure = Figure(figsize=(8.5, 3.8), layout="constrained")
    budgets = found["budget"].unique()
    several = len(budgets) > 1
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, which, title in zip(
        axes, ("targets", "all"), ("target classes", "all classes"), strict=True
    ):
        axis.set_title(title)
        if several:
            plot_methods(axis, found, "budget", which)
            axis.set_xscale("log")
            axis.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
            axis.minorticks_off()
            axis.set_xlabel("images of the attacker")
        else:
            plot_at_one_place(axis, found, which)
            axis.set_xlabel("accuracy after retraining")
    if several:
        axes[0].set_ylabel("accuracy after retraining")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    put_finding(figure, _finding(found))
    return figure


def _finding(found: pd.DataFrame) -> str:
    """Describe in words the accuracy of attackers with the most images."""
    budget = found["budget"].max()
    most = found[found["budget"] == budget].set_index("method")["targets"]
    if most.max() < 0.01:
        return f"With {budget:,} images attackers learn no target class, whatever is hidden"
    least = most.idxmin()
    return (
        f"With {budget:,} images attackers reach {most[least]:.1%} ({least} hidden) to "
        f"{most.max():.1%} on target classes"
    )
