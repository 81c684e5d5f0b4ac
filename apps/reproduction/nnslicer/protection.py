"""Selective protection: the paper's Figure 5.

Each method hides half of the synapses of every layer, those that target classes need most;
attackers retrain the model with budgets of training images. The method "Everything" hides all
synapses. The accuracy that attackers reach then is due to their images alone, and no choice of
hidden synapses can prevent it. An interrupted experiment resumes from its working folder when it
is run again.
"""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import protection, pruning
from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.nnslicer.settings import ProtectionSettings
from reproduction.nnslicer.targets import (
    ABLATED,
    RANKINGS,
    Targets,
    load_task,
    measure,
    set_name,
    summary,
)
from reproduction.plots import plot_at_one_place, plot_methods, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note
from reproduction.samples import of_classes

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

Masks = dict[str, np.ndarray]


def protect(s: ProtectionSettings) -> ExperimentResult:
    """Hide synapses, let attackers retrain, and measure their accuracy (Figure 5)."""
    for name in s.method or ():
        check_name("method", name, METHODS)
    task = load_task(s, RANKINGS | {"theta0": ABLATED["theta0"]})
    known = dict.fromkeys(task.subsets, task.train)
    if s.without_targets:
        known = {t: of_classes(task.train, t, invert=True) for t in task.subsets}
    # The requested budgets, or the default ones for which there are images.
    largest = min(map(len, known.values()))
    impossible = [budget for budget in s.budget or () if not 0 < budget <= largest]
    if impossible:
        received = f"Received: {impossible[0]}"
        raise InvalidArgumentError(f"A budget is 1 to {largest:,} images here. {received}")
    budgets = s.budget or [budget for budget in BUDGETS if budget <= largest]

    # Method → the scores of which it hides the largest, for target classes and a repetition.
    ranked, weight = task.ranked, pruning.scores(task.im, "weight")
    scores: dict[str, Callable[[Targets, int], Masks]] = {
        "NNSlicer": lambda targets, _: ranked["slices"].total(targets),
        "EffectivePath": lambda targets, _: ranked["paths"].total(targets),
        "Weight": lambda *_: weight,
        "Random": lambda _, repeat: pruning.scores(task.im, "random", rng=s.seed + repeat),
        "NNSlicer, θ = 0": lambda targets, _: ranked["theta0"].total(targets),
        "NNSlicer, ours": lambda targets, _: ranked["magnitudes"].total(targets),
        "Everything": lambda *_: weight,
    }

    def hidden(name: str, targets: Targets, repetition: int = 0) -> Masks:
        share = 1.0 if name == "Everything" else s.share
        return protection.select(scores[name](targets, repetition), share)

    attacker = protection.Attacker(s.epochs, trains=s.trains, progress=False)

    def stolen(targets: Targets, name: str, images: int, repetition: int) -> np.ndarray:
        masks, seed = hidden(name, targets, repetition), s.seed + repetition
        model = protection.steal(task.im.model, masks, known[targets], images, attacker, seed)
        return InstrumentedModel(model).logits(task.measured.x)

    cases = []
    names, repetitions = dict.fromkeys(s.method or METHODS), range(s.repetitions)
    for name, images, repetition in itertools.product(names, budgets, repetitions):
        shared = name in ("Weight", "Random", "Everything") and not s.without_targets
        case = {"method": name, "budget": images, "repetition": repetition}
        attack = partial(stolen, name=name, images=images, repetition=repetition)
        cases.append((case, attack, shared))
    ending = f"-{s.trains}" * (s.trains != "all") + "-others" * s.without_targets
    rows = measure(task, f"attacks-{s.share}-{s.epochs}{ending}.csv", cases, "Attacks")
    found = summary(rows, ["method", "budget"], ["targets", "others", "all"])
    found["attacks"] = rows.groupby(["method", "budget"], sort=False).size().to_numpy()
    head = {
        "model": f"{s.model_name} on {s.dataset}",
        "samples": f"{s.samples} images of each class to rank by, "
        f"{min(s.profiled, len(task.train)):,} of the profile, {len(task.measured):,} test images",
        "attacks": f"{s.share:.0%} of each layer hidden, {s.epochs} epochs, {s.repetitions} "
        f"repetitions, targets {', '.join(map(set_name, task.subsets))}",
        "attackers": _ATTACKERS[s.trains]
        + ", have no images of target classes" * s.without_targets,
        "seed": s.seed,
    }
    name, title = f"figure5{ending}", "Selective protection (Figure 5)"
    table = ExperimentTable(name, found, title, head, note("protection"))
    attacks = ExperimentTable(f"attacks{ending}", rows)
    return ExperimentResult([table, attacks], [ExperimentFigure(name, plot(found))])


def plot(found: pd.DataFrame) -> Figure:
    """Plot the attackers' accuracy over their number of images, or bars for a single number."""
    figure = Figure(figsize=(8.5, 3.8), layout="constrained")
    budgets = found["budget"].unique()
    several = len(budgets) > 1
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, which in zip(axes, ("targets", "all"), strict=True):
        axis.set_title("target classes" if which == "targets" else "all classes")
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
    # The finding: the accuracy of attackers with the most images.
    budget = found["budget"].max()
    most = found[found["budget"] == budget].set_index("method")["targets"]
    finding = f"With {budget:,} images attackers learn no target class, whatever is hidden"
    if most.max() >= 0.01:
        finding = f"With {budget:,} images attackers reach {most.min():.1%} "
        finding += f"({most.idxmin()} hidden) to {most.max():.1%} on target classes"
    return put_finding(figure, finding)
