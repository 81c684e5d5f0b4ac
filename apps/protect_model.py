"""Protect target classes: the NNSlicer paper's Figure 5.

    python apps/protect_model.py

Half of the synapses of every layer are hidden, those that target classes need most by each
method; attackers retrain the rest on budgets of training images. The method "Everything" hides
all synapses: what attackers who train them reach then they have from their images alone, and no
choice of synapses to hide takes it from them. An interrupted run goes on from its working
folder when it is given again.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import matplotlib
import numpy as np
import pandas as pd
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, protection, pruning, zoo
from nnslicer_tf._files import data_folder
from nnslicer_tf._progress import track
from nnslicer_tf.pruning.experiments import (
    ABLATED,
    RANKINGS,
    Cells,
    draw_subsets,
    kept_rankings,
    subset_figures,
)
from nnslicer_tf.report import provenance, save_figure, write_table

matplotlib.use("Agg")

BUDGETS = (1_000, 2_000, 5_000, 10_000, 20_000, 45_000)
KEYS = ["method", "budget", "targets_of", "repetition"]

METHODS = (
    "NNSlicer",
    "EffectivePath",
    "Weight",
    "Random",
    "NNSlicer, θ = 0",
    "NNSlicer, ours",
    "Everything",
)

Masks = dict[str, np.ndarray]


@dataclass(frozen=True)
class Method:
    """A way to choose what is hidden.

    Attributes:
        hidden: From target classes and the repetition to the hidden synapses.
        targeted: Whether they depend on the classes.
    """

    hidden: Callable[[tuple[int, ...], int], Masks]
    targeted: bool


def main(
    model: Annotated[str, typer.Option(help="Model of the zoo.")] = "resnet10",
    dataset: Annotated[str, typer.Option(help="Its data set.")] = "cifar10",
    share: Annotated[
        float, typer.Option(help="Share of the synapses to hide.", min=0.001, max=1.0)
    ] = 0.5,
    budget: Annotated[list[int] | None, typer.Option(help="Images of an attacker.")] = None,
    epochs: Annotated[int, typer.Option(help="Of an attacker.", min=1)] = 5,
    samples: Annotated[int, typer.Option(help="Images of each class to rank by.", min=1)] = 100,
    profiled: Annotated[int, typer.Option(help="Images of the profile.", min=1)] = 45_000,
    subsets: Annotated[int, typer.Option(help="Sets of target classes; 0: all.", min=0)] = 2,
    size: Annotated[int, typer.Option(help="Classes in a set.", min=1)] = 4,
    repetitions: Annotated[int, typer.Option(help="Attacks of each kind.", min=1)] = 3,
    method: Annotated[
        list[str] | None, typer.Option(help="What is hidden; all of the methods by default.")
    ] = None,
    trains: Annotated[
        Literal["all", "hidden", "known"], typer.Option(help="What attackers train.")
    ] = "all",
    without_targets: Annotated[
        bool, typer.Option(help="Attackers have no images of target classes.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    work: Annotated[Path, typer.Option(help="Folder of resumable work.")] = Path("runs/protection"),
    results: Annotated[Path | None, typer.Option(help="Folder of tables and figures.")] = None,
    quick: Annotated[bool, typer.Option(help="Few samples, one budget; a trial.")] = False,
) -> None:
    """Hide synapses, let attackers retrain, and report what they reach."""
    if quick:
        samples, profiled, subsets, repetitions, epochs, budget = 10, 500, 1, 1, 1, [300]
    chosen = _chosen(method)
    attacker = protection.Attacker(epochs, trains=trains, progress=False)
    im = nns.InstrumentedModel(zoo.load(model, dataset))
    train, test = datasets.load(dataset, "train[:90%]"), datasets.load(dataset, "test")
    drawn = draw_subsets(test.classes, size, subsets or None, seed)
    known = {t: _others(train, t) if without_targets else train for t in drawn}
    budgets = _budgets(budget, min(map(len, known.values())))
    work = work / f"{model}-{dataset}-{samples}-{profiled}-{seed}"
    rankings = RANKINGS | {"theta0": ABLATED["theta0"]}
    ranked = kept_rankings(im, train, samples, profiled, work, rankings)
    methods = _methods(im, ranked, share, seed)
    kind = f"{share}-{epochs}" + _ENDINGS[trains] + "-others" * without_targets
    cells = Cells(work / f"attacks-{kind}.csv", KEYS)
    rows = []
    jobs = list(itertools.product(chosen, budgets, range(repetitions)))
    for name, images, repetition in track(jobs, "Attacks"):
        named = {"method": name, "budget": images, "repetition": repetition}
        rows += [named | {"targets_of": _name(targets)} for targets in drawn]
        logits = None
        for targets in drawn:
            row = named | {"targets_of": _name(targets)}
            if row in cells:
                continue
            if logits is None or methods[name].targeted or without_targets:
                hidden = methods[name].hidden(targets, repetition)
                stolen = protection.steal(
                    im.model, hidden, known[targets], images, attacker, seed + repetition
                )
                logits = nns.InstrumentedModel(stolen).logits(test.x)
            cells.add([row | subset_figures(logits, test.y, targets)])
    summary = _summary(cells.to_frame(rows))
    head = provenance(
        model=f"{model} on {dataset}",
        samples=f"{samples} images of each class to rank by, {min(profiled, len(train)):,} of "
        f"the profile, {len(test):,} test images",
        attacks=f"{share:.0%} of each layer hidden, {epochs} epochs, {repetitions} repetitions, "
        f"targets {', '.join(map(_name, drawn))}",
        attackers=_ATTACKERS[trains]
        + (", have no images of target classes" if without_targets else ""),
        seed=seed,
    )
    folder = results or (
        Path("runs/protection/quick") if quick else data_folder() / "results/protection"
    )
    name = "figure5" + _ENDINGS[trains] + "-others" * without_targets
    write_table(folder / name, "Selective protection (Figure 5)", summary, head, _TEXT)
    _draw(summary, folder / f"{name}.png")
    typer.echo((folder / f"{name}.md").read_text())


_ATTACKERS = {
    "all": "train all weights",
    "hidden": "train the hidden weights alone",
    "known": "train all but the hidden weights, whose synapses are left out",
}
_ENDINGS = {"all": "", "hidden": "-hidden", "known": "-known"}
_TEXT = (
    "Mean accuracy of the retrained models on test images of the target classes, of the other "
    "classes, and of all (`±`: standard deviation over sets and repetitions). Low on the targets "
    "is good protection. `Everything`: all synapses are hidden; attackers who train them have what "
    "their images give, those who do without them have no network. "
    "The paper: below 10 % on the targets with every budget, the others "
    "above 30 %, EffectivePath 90 % (data/paper/nnslicer/figure5.csv)."
)


def _methods(
    im: nns.InstrumentedModel, ranked: dict[str, pruning.ClassScores], share: float, seed: int
) -> dict[str, Method]:
    """Return the methods by name."""
    weight = pruning.scores(im, "weight")

    def by_class(scores: pruning.ClassScores) -> Method:
        return Method(lambda targets, _: protection.select(scores.total(targets), share), True)

    def random(_: tuple[int, ...], repetition: int) -> Masks:
        return protection.select(pruning.RandomRanker(seed + repetition).scores(im), share)

    found = (
        by_class(ranked["slices"]),
        by_class(ranked["paths"]),
        Method(lambda *_: protection.select(weight, share), False),
        Method(random, False),
        by_class(ranked["theta0"]),
        by_class(ranked["magnitudes"]),
        Method(lambda *_: protection.select(weight, 1.0), False),
    )
    return dict(zip(METHODS, found, strict=True))


def _chosen(asked: list[str] | None) -> list[str]:
    """Return the methods asked for, or all."""
    unknown = [name for name in asked or () if name not in METHODS]
    if unknown:
        raise typer.BadParameter(f"--method is one of {'; '.join(METHODS)}, not {unknown[0]}")
    return list(dict.fromkeys(asked or METHODS))


def _budgets(asked: list[int] | None, largest: int) -> list[int]:
    """Return the budgets asked for, or the usual ones that there are images for."""
    impossible = [budget for budget in asked or () if not 0 < budget <= largest]
    if impossible:
        raise typer.BadParameter(f"--budget is 1 to {largest:,} images here, not {impossible[0]}")
    return asked or [budget for budget in BUDGETS if budget <= largest]


def _others(train: datasets.Dataset, targets: tuple[int, ...]) -> datasets.Dataset:
    chosen = ~np.isin(train.y, targets)
    return datasets.Dataset(
        *(train.x[chosen], train.y[chosen], train.name, train.split, train.normalise),
        train.classes,
    )


def _name(targets: tuple[int, ...]) -> str:
    return "-".join(map(str, targets))


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.assign(budget=rows["budget"].astype(int))
    groups = rows.groupby(["method", "budget"], sort=False)
    summary = groups[["targets", "others", "all"]].mean()
    summary["targets ±"] = groups["targets"].std(ddof=0)
    summary["attacks"] = groups.size()
    return summary.reset_index()


def _draw(summary: pd.DataFrame, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for axis, which in zip(axes, ("targets", "all"), strict=True):
        for name, rows in summary.groupby("method", sort=False):
            axis.plot(rows["budget"], rows[which], marker="o", label=name)
        axis.set_xscale("log")
        axis.set_title(f"{which} classes" if which == "all" else "target classes")
        axis.set_xlabel("images of the attacker")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy after retraining")
    axes[0].legend(fontsize=8)
    save_figure(figure, path, dpi=110)


if __name__ == "__main__":
    typer.run(main)
