"""The headline results of NNSlicer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from reproduction.headlines.headline import Headline, Part, Tables
from reproduction.result import paper_frame

# Attackers who train all weights: over eight sets of target classes, and with the largest budgets
# over two.
_ALL_WEIGHTS = ("eight-sets/figure5", "figure5")

# Presets whose figures are headlines, in this order.
_PRESETS = ("paper", "margin", "fused", "stable", "slices", "lean", "photos")


def _detection(model: str, title: str) -> Part:
    """Return the average F1 of each of our detectors, of one model."""

    def rows(tables: Tables) -> Iterator[Headline]:
        table = tables[f"detection/{model}"]
        frame, rate = table.frame, table.head.get("false-positive rate asked", "")
        average = frame[frame["attack"] == "Average"].set_index("method")
        attacks = frame.loc[frame["attack"] != "Average", "attack"].nunique()
        ours = [m for m in _PRESETS if m in average.index]
        published = float(average.loc[ours[0], "paper_f1"])
        what = f"Detection, {title}: mean F1 over {attacks} attacks, of each preset"
        what += f" (nominal false-positive rate {float(rate):.0%})" if rate else ""
        for preset, score in average.loc[ours, "f1"].items():
            reached = bool(score >= published)
            shown = f"{score:.2f}", f"{published:.2f}"
            yield Headline(what, str(preset), *shown, reached, "nnslicer/table4")

    return rows


def _challenge(model: str, title: str) -> Part:
    """Return how much larger a change must be to evade the detector as well as the model."""

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[f"detection/challenge/{model}"].frame
        what = (
            f"Detection, {title}: smallest change that evades model and detector, relative to "
            "the model alone (median)"
        )
        for _, row in frame[frame["attack"] == "model and detector"].iterrows():
            norm = {"linf": "L∞", "l2": "L2"}[row["norm"]]
            doubt = "" if row["verdict"] == "credible" else ", not credible"
            here = f"{row['ratio']:.2f} times{doubt}"
            # The goal is a credible challenge in which the change doubles.
            reached = bool(row["ratio"] >= 2 and not doubt)
            case = f"{row['method']}, {norm}"
            yield Headline(what, case, here, "2 times (goal)", reached, "nnslicer/table4-challenge")

    return rows


def _program_detection(tables: Tables) -> Iterator[Headline]:
    """Return how well the program's rule detects, by its own scoring and by an honest one."""
    frame = tables["program/detection-resnet10-cifar10-means"].frame.set_index("method")
    paper = paper_frame("nnslicer/table4").set_index(["attack", "method"])["f1"]
    what = "Detection by the rule of the paper's program (ResNet10): mean F1"
    for method, role in (("NNSlicer, θ = 0.2", "NNSlicer"), ("EffectivePath", "EffectivePath")):
        if method not in frame.index:
            continue
        row, published = frame.loc[method], f"{paper[('Average', role)]:.2f}"
        said = f"{role}, as the program scores (all adversarial inputs count as found)"
        yield Headline(
            what, said, f"{row['program_f1']:.2f}", published, None, "nnslicer/table4-program"
        )
        shown = f"{row['f1']:.2f}", published
        said, reached = f"{role}, scored honestly", bool(row["f1"] >= paper["Average", role])
        yield Headline(what, said, *shown, reached, "nnslicer/table4-program")


def _speed(tables: Tables) -> Iterator[Headline]:
    """Return the time of the backward walk per sample, for the paper's models."""
    frame = tables["benchmarks/slicing"].frame.set_index("model")
    paper = paper_frame("nnslicer/table3").set_index("model")["backward_batch"]
    for name, published in (("lenet", "LeNet"), ("resnet10", "ResNet10"), ("resnet18", "ResNet18")):
        if name in frame.index:
            here, theirs = frame.loc[name, "backward ms"], 1_000 * paper[published]
            what = "Slicing: milliseconds of CPU time per sample (backward walk alone, in batches)"
            shown = f"{here:.3g}", f"{theirs:,.0f}"
            yield Headline(what, published, *shown, bool(here <= theirs), "nnslicer/table3")


def _pruning(tables: Tables) -> Iterator[Headline]:
    """Return the accuracy with 55 % pruned, by the paper's procedure and by ours."""
    frame = tables["pruning/figure3"].frame
    at = frame[frame["ratio"].round(3) == 0.55].set_index("method")["targets"]
    for name, title in (
        ("NNSlicer (targeted)", "the paper's procedure"),
        (
            "NNSlicer (targeted), renormalised",
            "by magnitudes, statistics of normalisations estimated anew",
        ),
        (
            "NNSlicer (targeted), ours",
            "by contributions' magnitudes × weights, smallest scores of the whole model",
        ),
    ):
        if name not in at.index:
            continue
        what = "Targeted pruning of 55 %: accuracy on four target classes, all sets"
        here = float(at[name])
        shown = f"{here:.1%}", "about 80 %"
        yield Headline(what, title, *shown, here >= 0.8, "nnslicer/figure3")


def _program_pruning(tables: Tables) -> Iterator[Headline]:
    """Return the accuracy with 55 % pruned by the program's procedure, and in a fair comparison."""
    frame = tables["program/pruning-resnet10_preactivation-cifar10"].frame
    frame = frame[frame["ratio"].round(3) == 0.55].set_index(["treatment", "method"])
    treatments = {
        "program": "by the program's procedure",
        "fair": "all methods treated alike",
        "fair, whole model": "all alike, the smallest of the whole model first",
    }
    for treatment, said in treatments.items():
        what = (
            f"Targeted pruning of 55 %, {said}: accuracy on four target classes (among them alone)"
        )
        for method in ("NNSlicer (targeted)", "NNSlicer (all)", "Weight"):
            row = frame.loc[(treatment, method)]
            here = f"{row['targets']:.1%} ({row['among_targets']:.1%})"
            is_goal = treatment == "program" and method == "NNSlicer (targeted)"
            published = "about 80 %" if is_goal else ""
            reached = bool(row["targets"] >= 0.75) if is_goal else None
            yield Headline(what, method, here, published, reached, "nnslicer/figure3-program")


def _protection(names: Sequence[str], method: str, attackers: str) -> Part:
    """Return the accuracy that attackers reach on protected classes, for a hiding method.

    Each budget's accuracy is that of the first of the named tables that has the budget.
    """

    def rows(tables: Tables) -> Iterator[Headline]:
        paths = [f"protection/{name}" for name in names]
        frames = [tables[path].frame for path in paths if path in tables]
        if not frames:
            return
        frame = pd.concat(frames)
        found = frame[frame["method"] == method].drop_duplicates("budget").sort_values("budget")
        what = f"Protection: accuracy on protected classes, attackers who {attackers}"
        for _, row in found.iterrows():
            case = f"{row['budget']:,} images, mean of {row['attacks']}"
            here, good = f"{row['targets']:.1%}", bool(row["targets"] < 0.1)
            yield Headline(what, case, here, "below 10 %", good, "nnslicer/figure5")

    return rows


def _protection_bound(tables: Tables) -> Iterator[Headline]:
    """Return the accuracy of attackers who train all weights when all synapses are hidden."""
    for row in _protection(_ALL_WEIGHTS, "Everything", "have only images (all is hidden)")(tables):
        yield replace(row, published="", reached=None)


def _program_protection(ending: str) -> Part:
    """Return the accuracy of the program's attackers on the protected classes."""

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[f"program/protection-resnet10_preactivation-program-{ending}"].frame
        published = {"NNSlicer": "below 10 %", "EffectivePath": "about 90 %"}
        published |= dict.fromkeys(("Weight", "Random"), "above 30 %")
        for _, row in frame.iterrows():
            what = (
                f"Protection, the program's attackers with {row['budget']:,} images: targets, "
                f"{row['sets']} sets"
            )
            here, method = float(row["targets"]), str(row["method"])
            goal = published.get(method, "")
            reached = here < 0.1 if method == "NNSlicer" else None
            yield Headline(what, method, f"{here:.1%}", goal, reached, "nnslicer/figure5-program")

    return rows


PARTS: tuple[Part, ...] = (
    _detection("lenet5-mnist", "LeNet-5 on MNIST"),
    _detection("lenet5-mnist-from1500", "LeNet-5 on MNIST, images of no earlier table"),
    _detection("resnet10-cifar10", "ResNet10 on CIFAR-10"),
    _detection("resnet10-cifar10-from500", "ResNet10 on CIFAR-10, images of no earlier table"),
    _challenge("lenet5-mnist", "LeNet-5 on MNIST"),
    _challenge("lenet5-mnist-10-l2", "LeNet-5 on MNIST, ten images"),
    _challenge("resnet10-cifar10", "ResNet10 on CIFAR-10"),
    _program_detection,
    _speed,
    _pruning,
    _program_pruning,
    _protection(_ALL_WEIGHTS, "NNSlicer", "train all weights"),
    _protection_bound,
    _protection(("figure5-known",), "NNSlicer", "leave out hidden synapses"),
    _protection(("figure5-known",), "NNSlicer, θ = 0", "leave out hidden synapses (θ = 0)"),
    _program_protection("4x10-1000-5000"),
    _program_protection("4x10"),
    _program_protection("4x10-45000"),
)
"""All parts, in their order."""
