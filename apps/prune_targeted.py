"""Prune for target classes: the NNSlicer paper's Figures 3 and 4.

    python apps/prune_targeted.py curves        # without fine-tuning, all sets of classes
    python apps/prune_targeted.py fine-tuned    # one epoch after pruning, large ratios
    python apps/prune_targeted.py ablation      # what the paper leaves open, and our changes

Methods of the paper prune the same share of every layer. So do those that end in "renormalised",
which measure batch normalisations again afterwards, and add up contributions to single images
without their signs. Those that end in "ours" prune the smallest of the whole model, by such
contributions times weights. An interrupted command goes on from its working folder when it is
given again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import pandas as pd
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, pruning, zoo
from nnslicer_tf._files import data_folder
from nnslicer_tf._progress import track
from nnslicer_tf.pruning.experiments import (
    ABLATED,
    Cells,
    draw_subsets,
    kept_rankings,
    subset_figures,
)
from nnslicer_tf.report import provenance, save_figure, write_table

matplotlib.use("Agg")

app = typer.Typer(add_completion=False, help=__doc__)

RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95)
TUNED_RATIOS = (0.7, 0.8, 0.9, 0.95)
ENDINGS = {
    "": "the same share of each layer",
    ", renormalised": "and normalisations measured again",
    ", ours": "the smallest of the whole model",
}
"""Endings of the methods' names → what the methods have in common."""
_RENORMALISE_ON = 500
FIGURES = ["targets", "others", "among_targets"]

Model = Annotated[str, typer.Option(help="Model of the zoo.")]
Data = Annotated[str, typer.Option(help="Its data set.")]
Samples = Annotated[int, typer.Option(help="Training samples of each class to rank by.", min=1)]
Profiled = Annotated[int, typer.Option(help="Training samples of the profile.", min=1)]
Subsets = Annotated[int, typer.Option(help="Sets of target classes; 0: all.", min=0)]
Size = Annotated[int, typer.Option(help="Classes in a set.", min=1)]
Seed = Annotated[int, typer.Option(help="Draws sets, order of samples, random scores.", min=0)]
Ratios = Annotated[
    list[float] | None, typer.Option("--ratio", min=0.0, max=0.999, help="Prune ratios.")
]
Work = Annotated[Path, typer.Option(help="Folder of resumable work.")]
Results = Annotated[Path | None, typer.Option(help="Folder of tables and figures.")]
Quick = Annotated[bool, typer.Option(help="Few samples, sets and ratios; a trial.")]

Scores = dict[str, np.ndarray]


@dataclass(frozen=True)
class Method:
    """A way to prune.

    Attributes:
        scores: From target classes to scores.
        targeted: Whether the scores depend on the classes.
        whole_model: Prune the smallest of the model, not the same share of each layer.
        renormalised: Measure batch normalisations again after pruning.
    """

    scores: Callable[[tuple[int, ...]], Scores]
    targeted: bool = False
    whole_model: bool = False
    renormalised: bool = False

    def keep(self, targets: tuple[int, ...], ratio: float) -> dict[str, np.ndarray]:
        """Return the masks for target classes and a ratio."""
        scores = self.scores(targets)
        return pruning.keep_masks(
            scores, pruning.global_ratios(scores, ratio) if self.whole_model else ratio
        )

    def statistics_of(self, train: datasets.Dataset) -> np.ndarray | None:
        """Return the images on which normalisations are measured again, if they are."""
        return train.x[:_RENORMALISE_ON] if self.renormalised else None


@dataclass(frozen=True)
class Setting:
    """What both experiments stand on."""

    im: nns.InstrumentedModel
    train: datasets.Dataset
    test: datasets.Dataset
    methods: dict[str, Method]
    subsets: list[tuple[int, ...]]
    work: Path
    results: Path
    head: dict[str, object]

    @property
    def sets(self) -> str:
        """Name of the sets of target classes in the names of files."""
        return f"{len(self.subsets[0])}x{len(self.subsets)}"

    def cells(self, ratios: Sequence[float]) -> list[dict[str, object]]:
        """Return the names of all cells of an experiment."""
        return [
            {"method": method, "ratio": ratio, "targets_of": _name(targets)}
            for method in self.methods
            for ratio in ratios
            for targets in self.subsets
        ]


@app.command()
def curves(
    model: Model = "resnet10",
    dataset: Data = "cifar10",
    samples: Samples = 100,
    profiled: Profiled = 45_000,
    subsets: Subsets = 0,
    size: Size = 4,
    ratio: Ratios = None,
    seed: Seed = 0,
    work: Work = Path("runs/pruning"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Accuracy without fine-tuning by prune ratio (Figure 3)."""
    if quick:
        samples, profiled, subsets, ratio = 10, 500, 2, ratio or [0.5]
    setting = _setting(model, dataset, samples, profiled, subsets, size, seed, work, results, quick)
    cells = Cells(setting.work / f"curves-{setting.sets}.csv", ["method", "ratio", "targets_of"])
    predictor = pruning.MaskedPredictor(setting.im)
    for name, method in setting.methods.items():
        for r in track(ratio or RATIOS, name):
            rows = _rows(setting, predictor, method, r, cells, {"method": name, "ratio": r})
            cells.add(rows)
    summary = _summary(cells.to_frame(setting.cells(ratio or RATIOS)))
    text = f"{_PLAIN}\n\n{_verdict(summary)}\n\nThe paper: see data/paper/nnslicer/figure3.csv."
    title = "Targeted pruning (Figure 3)"
    path = setting.results / (f"figure3-{setting.sets}" if subsets else "figure3")
    write_table(path, title, summary, setting.head, text)
    _draw(summary, path.with_suffix(".png"))
    typer.echo(path.with_suffix(".md").read_text())


@app.command()
def fine_tuned(
    model: Model = "resnet10",
    dataset: Data = "cifar10",
    samples: Samples = 100,
    profiled: Profiled = 45_000,
    subsets: Subsets = 2,
    size: Size = 4,
    ratio: Ratios = None,
    images: Annotated[int, typer.Option(help="Images of the one epoch.", min=1)] = 10_000,
    seed: Seed = 0,
    work: Work = Path("runs/pruning"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Accuracy after one epoch of training by prune ratio (Figure 4)."""
    if quick:
        samples, profiled, subsets, images, ratio = 10, 500, 1, 300, ratio or [0.9]
    setting = _setting(model, dataset, samples, profiled, subsets, size, seed, work, results, quick)
    # Training measures the normalisations again anyway.
    plain = {name: m for name, m in setting.methods.items() if not m.renormalised}
    setting = replace(setting, methods=plain)
    file = setting.work / f"tuned-{images}-{setting.sets}.csv"
    cells = Cells(file, ["method", "ratio", "targets_of"])
    chosen = np.random.default_rng(seed).permutation(len(setting.train))[:images]
    x, y = setting.train.x[chosen], setting.train.y[chosen]
    for name, method in setting.methods.items():
        for r in track(ratio or TUNED_RATIOS, name):
            tuned = None
            for targets in setting.subsets:
                row = {"method": name, "ratio": r, "targets_of": _name(targets)}
                if row in cells:
                    continue
                if tuned is None or method.targeted:
                    pruned = pruning.apply_masks(setting.im.model, method.keep(targets, r))
                    tuned = pruning.fine_tune(pruned, x, y, rng=seed, progress=False)
                logits = tuned.predict(setting.test.x, batch_size=200, verbose=0)
                cells.add([row | subset_figures(logits, setting.test.y, targets)])
    summary = _summary(cells.to_frame(setting.cells(ratio or TUNED_RATIOS)))
    head = {**setting.head, "images": images}
    text = f"{_PLAIN} The images of the epoch are of all classes."
    title = "After one epoch of training (Figure 4)"
    write_table(setting.results / "figure4", title, summary, head, text)
    _draw(summary, setting.results / "figure4.png")
    typer.echo((setting.results / "figure4.md").read_text())


@app.command()
def ablation(
    model: Model = "resnet10",
    dataset: Data = "cifar10",
    samples: Samples = 50,
    profiled: Profiled = 5_000,
    subsets: Subsets = 8,
    size: Size = 4,
    ratio: Ratios = None,
    images: Annotated[int, typer.Option(help="Held-out images to measure on.", min=1)] = 1_000,
    seed: Seed = 0,
    work: Work = Path("runs/pruning"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """What the paper leaves open, and each of our changes, on held-out training images."""
    if quick:
        samples, profiled, subsets, images, ratio = 10, 500, 1, 100, ratio or [0.5]
    im = nns.InstrumentedModel(zoo.load(model, dataset))
    train, held_out = (datasets.load(dataset, f"train{part}") for part in ("[:90%]", "[90%:]"))
    drawn = draw_subsets(train.classes, size, subsets or None, seed)
    work, folder = _folders(work, model, dataset, samples, profiled, seed, results, quick)
    ranked = kept_rankings(im, train, samples, profiled, work, ABLATED)
    predictor = pruning.MaskedPredictor(im)
    x, y = held_out.x[:images], held_out.y[:images]
    rows = []
    changes = _changes(im, ranked)
    for name, method in track(changes.items(), "Ablation", len(changes)):
        for r in ratio or (0.4, 0.6):
            for targets in drawn:
                keep = method.keep(targets, r)
                logits = predictor.logits(keep, x, method.statistics_of(train))
                rows.append({"method": name, "ratio": r} | subset_figures(logits, y, targets))
    head = provenance(
        model=f"{model} on {dataset}",
        samples=f"{samples} training images of each class to rank by, {profiled:,} of the profile, "
        f"{len(x):,} held-out images to measure on",
        sets=f"{len(drawn)} sets of {size} target classes",
        seed=seed,
    )
    summary = _summary(pd.DataFrame(rows))
    write_table(folder / "ablation", "What each change does to pruning", summary, head, _PLAIN)
    typer.echo((folder / "ablation.md").read_text())


_PLAIN = (
    "Mean accuracy over the sets of target classes (`±`: standard deviation over the sets): on "
    "images of the target classes, on those of the others, and on those of the target "
    "classes where only a target class may be predicted."
)


def _setting(
    model: str,
    dataset: str,
    samples: int,
    profiled: int,
    subsets: int,
    size: int,
    seed: int,
    work: Path,
    results: Path | None,
    quick: bool,
) -> Setting:
    """Load the model and the data, and rank the synapses by class."""
    im = nns.InstrumentedModel(zoo.load(model, dataset))
    # The last tenth was held out from training; what is ours was chosen on it.
    train, test = datasets.load(dataset, "train[:90%]"), datasets.load(dataset, "test")
    drawn = draw_subsets(test.classes, size, subsets or None, seed)
    work, folder = _folders(work, model, dataset, samples, profiled, seed, results, quick)
    head = provenance(
        model=f"{model} on {dataset}, {zoo.accuracy(im.model, test):.1%} of all test images",
        samples=f"{samples} training images of each class to rank by (the model is right on "
        f"them), {min(profiled, len(train)):,} of the profile, {len(test):,} test images",
        sets=f"{len(drawn)} sets of {size} target classes",
        seed=seed,
    )
    methods = _methods(im, kept_rankings(im, train, samples, profiled, work), seed)
    return Setting(im, train, test, methods, drawn, work, folder, head)


def _folders(
    work: Path,
    model: str,
    dataset: str,
    samples: int,
    profiled: int,
    seed: int,
    results: Path | None,
    quick: bool,
) -> tuple[Path, Path]:
    """Return the folder of resumable work of one setting, and that of the results."""
    kept = data_folder() / "results/pruning"
    folder = results or (Path("runs/pruning/quick") if quick else kept)
    return work / f"{model}-{dataset}-{samples}-{profiled}-{seed}", folder


def _methods(
    im: nns.InstrumentedModel, ranked: dict[str, pruning.ClassScores], seed: int
) -> dict[str, Method]:
    slices, magnitudes, paths = (ranked[kind] for kind in ("slices", "magnitudes", "paths"))
    weight, channel = pruning.scores(im, "weight"), pruning.scores(im, "channel")
    random = pruning.RandomRanker(seed).scores(im)
    everything = slices.total()
    all_magnitudes = magnitudes.total()
    finer_all = pruning.times_weight(im, all_magnitudes, 0.25)
    again = partial(Method, renormalised=True)

    def finer(scores: pruning.ClassScores) -> Callable[[tuple[int, ...]], Scores]:
        return lambda targets: pruning.times_weight(im, scores.total(targets), 0.25)

    return {
        "NNSlicer (targeted)": Method(slices.total, targeted=True),
        "NNSlicer (all)": Method(lambda targets: everything),
        "EffectivePath": Method(paths.total, targeted=True),
        "Weight": Method(lambda targets: weight),
        "Channel": Method(lambda targets: channel),
        "Random": Method(lambda targets: random),
        "NNSlicer (targeted), renormalised": again(magnitudes.total, True),
        "NNSlicer (all), renormalised": again(lambda targets: all_magnitudes),
        "EffectivePath, renormalised": again(paths.total, True),
        "Weight, renormalised": again(lambda targets: weight),
        "Channel, renormalised": again(lambda targets: channel),
        "Random, renormalised": again(lambda targets: random),
        "NNSlicer (targeted), ours": Method(finer(magnitudes), True, True),
        "NNSlicer (all), ours": Method(lambda targets: finer_all, whole_model=True),
        "EffectivePath, ours": Method(finer(paths), True, True),
        "Weight, ours": Method(lambda targets: weight, whole_model=True),
    }


def _changes(
    im: nns.InstrumentedModel, ranked: dict[str, pruning.ClassScores]
) -> dict[str, Method]:
    """Return the paper's procedure and pruning by weight, each with single changes."""
    slices, magnitudes = ranked["slices"], ranked["magnitudes"]
    weight = pruning.scores(im, "weight")

    def with_weight(scores: pruning.ClassScores, power: float) -> Callable[..., Scores]:
        return lambda targets: pruning.times_weight(im, scores.total(targets), power)

    return {
        "paper: θ = 0.3, activations, images that the model is right on": Method(slices.total),
        "θ = 0": Method(ranked["theta0"].total),
        "θ = 1": Method(ranked["theta1"].total),
        "channels as neurons": Method(ranked["channels"].total),
        "images that the model is wrong on too": Method(ranked["all-samples"].total),
        "ties by weight": Method(lambda targets: pruning.ties_by_weight(im, slices.total(targets))),
        "contributions × weight": Method(with_weight(slices, 1.0)),
        "magnitudes of each image": Method(magnitudes.total),
        "magnitudes of each image, ^ 0.25 × weight": Method(with_weight(magnitudes, 0.25)),
        "normalisations measured again": Method(slices.total, renormalised=True),
        "magnitudes of each image, normalisations measured again": Method(
            magnitudes.total, renormalised=True
        ),
        "magnitudes of each image, ^ 0.25 × weight, normalisations measured again": Method(
            with_weight(magnitudes, 0.25), renormalised=True
        ),
        "ours: magnitudes ^ 0.25 × weight, smallest of the model": Method(
            with_weight(magnitudes, 0.25), whole_model=True
        ),
        "Weight": Method(lambda targets: weight),
        "Weight, normalisations measured again": Method(lambda targets: weight, renormalised=True),
        "Weight, smallest of the model": Method(lambda targets: weight, whole_model=True),
    }


def _rows(
    setting: Setting,
    predictor: pruning.MaskedPredictor,
    method: Method,
    ratio: float,
    cells: Cells,
    row: dict[str, object],
) -> list[dict[str, object]]:
    """Return the figures of one method and ratio for the sets that have none yet."""
    rows, logits = [], None
    for targets in setting.subsets:
        named = row | {"targets_of": _name(targets)}
        if named in cells:
            continue
        if logits is None or (method.targeted and ratio > 0):
            logits = predictor.logits(
                method.keep(targets, ratio), setting.test.x, method.statistics_of(setting.train)
            )
        rows.append(named | subset_figures(logits, setting.test.y, targets))
    return rows


def _name(targets: Sequence[int]) -> str:
    return "-".join(map(str, targets))


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.assign(ratio=rows["ratio"].astype(float))
    groups = rows.groupby(["method", "ratio"], sort=False)
    summary = groups[FIGURES].mean()
    summary["targets ±"] = groups["targets"].std(ddof=0)
    return summary.reset_index()


def _verdict(summary: pd.DataFrame) -> str:
    """Say in words whether the goals are reached."""
    table = summary.pivot(index="ratio", columns="method", values="targets")
    lines = []
    for ending in ENDINGS:
        mine = f"NNSlicer (targeted){ending}"
        rivals = [c for c in table if c != mine and _ending(c) == ending]
        large = table[table.index >= 0.4]
        behind = large.index[large[mine] <= large[rivals].max(axis=1)]
        where = ", ".join(f"{ratio:g}" for ratio in behind)
        said = f"not above all others at {where}" if where else "above all others"
        lines.append(f"- {mine}: from 40 % pruned up it is {said}.")
        if 0.6 in table.index:
            lines.append(f"- {mine}: {table.loc[0.6, mine]:.1%} at 60 % pruned (goal: 80 %).")
    return "\n".join(lines)


def _ending(method: str) -> str:
    """Return the key of `ENDINGS` that a method's name ends in."""
    return next(ending for ending in reversed(ENDINGS) if method.endswith(ending))


def _draw(summary: pd.DataFrame, path: Path) -> None:
    import matplotlib.pyplot as plt

    endings = [e for e in ENDINGS if e in {_ending(name) for name in summary["method"]}]
    figure, axes = plt.subplots(
        1, len(endings), figsize=(5.5 * len(endings), 4.5), layout="constrained", sharey=True
    )
    kinds = list(dict.fromkeys(str(name).partition(", ")[0] for name in summary["method"]))
    panels = dict(zip(endings, axes, strict=True))
    for name, rows in summary.groupby("method", sort=False):
        kind = str(name).partition(", ")[0]
        panels[_ending(name)].plot(
            rows["ratio"], rows["targets"], marker="o", label=kind, color=f"C{kinds.index(kind)}"
        )
    for ending, axis in panels.items():
        axis.set_title(ENDINGS[ending])
        axis.set_xlabel("share of synapses pruned")
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy on target classes")
    save_figure(figure, path, dpi=110)


if __name__ == "__main__":
    app()
