"""Detection of adversarial inputs: the paper's Table 4, with our measurements beside it.

All detectors are fitted to the same normal training inputs. All attacks start from the same test
images; detectors are tested on the successful adversarial examples and their originals.
Adversarial examples and the results of finished detectors are kept in the working folder, from
which an interrupted run resumes. Remove its `rows` after changing a detector's code.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets, explore
from nnslicer_tf._checks import check_name
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.detection import (
    PRESETS,
    Detector,
    LogitMargin,
    SliceDetector,
    evaluate,
)
from nnslicer_tf.detection.attacks import AttackSpec, generate
from nnslicer_tf.detection.attacks.generation import AdversarialExamples
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report.explorer.explorer import Explorer
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.nnslicer.attacks import ATTACKS, MNIST_ATTACKS
from reproduction.nnslicer.baselines import EffectivePath, FeatureMap, FlagEverything
from reproduction.nnslicer.effective_path import effective_paths
from reproduction.nnslicer.settings import DEFAULT_RATE, DetectionSettings, split_names
from reproduction.plots import MARKERS, METHODS, plot_numbers
from reproduction.result import (
    ExperimentFigure,
    ExperimentResult,
    ExperimentTable,
    paper_frame,
    versions,
)
from reproduction.rows import RowStore
from reproduction.samples import load_classifier

FIGURES = ("precision", "recall", "f1", "auroc", "recall_at_5", "false_positives")


def attacks_on(dataset: str, names: str = "") -> list[AttackSpec]:
    """Return attacks by their names, separated by commas; by default all of a data set."""
    table = ATTACKS if dataset == "cifar10" else MNIST_ATTACKS
    chosen = split_names(names)
    for name in chosen:
        check_name("attack", name, table)
    return [table[name] for name in chosen or table]


def examples(
    model: keras.Model, attacks: Iterable[AttackSpec], data: Dataset, work: Path, **options: Any
) -> Iterator[tuple[AttackSpec, AdversarialExamples]]:
    """Yield each attack and its examples; print its number of successes."""
    for attack in attacks:
        made = generate(model, attack, data.x, data.y, cache=work / "examples", **options)
        print(f"{attack.name}: {made.success.sum()} of {len(data)} mislead the model", flush=True)
        yield attack, made


DETECTORS: dict[str, Callable[..., Detector]] = {
    **{name: partial(SliceDetector, preset=name) for name in PRESETS},
    "FeatureMap": lambda slicer, **common: FeatureMap(slicer.im, **common),
    "FeatureMap margin": lambda slicer, **common: FeatureMap(slicer.im, "margin", **common),
    "EffectivePath": lambda slicer, **common: EffectivePath(slicer.im, **common),
    "EffectivePath margin": lambda slicer, **common: EffectivePath(slicer.im, "margin", **common),
    "logit margin": lambda slicer, **common: LogitMargin(slicer.im, **common),
    "flag everything": lambda slicer, **common: FlagEverything(slicer.im, **common),
}
"""Method → detector, from a slicer and the arguments that all detectors take."""

# Method → the paper's method with which it is compared; NNSlicer for all others.
_PAPER = {"FeatureMap": "FeatureMap", "EffectivePath": "EffectivePath"}
_NOT_IN_THE_PAPER = ("logit margin", "flag everything")

MAX_PAIRS = 10  # in a view; more would only make its file larger

# Inputs from which times are estimated.
_TIMED, _TIMED_PATHS = 64, 8
_SECONDS_EACH = 3
# Unit of work → attack or method → about how many units it takes for an input.
_COSTS = {
    "gradients": {
        **{f"FGSM_{n}": 1 for n in (2, 4, 8)} | {f"RPGD_{n}": 40 for n in (2, 4, 8)},
        **{"DeepFoolLinf": 40, "DeepFoolL2": 40, "JSMA": 200, "CWL2": 500, "ADef": 100},
    },
    "slices": {
        **{"paper": 1, "margin": 1, "fused": 4},
        **{"stable": 6, "photos": 6, "slices": 50, "lean": 50},
    },
    "paths": {"EffectivePath": 1, "EffectivePath margin": 1},
    "passes": {
        **{"JSMA": 100, "ADef": 10, "SinglePixel": 500, "LocalSearch": 1_000, "Boundary": 6_000},
        **{"Pointwise": 2_000, "Spatial": 125, "GaussianBlur": 100, "FeatureMap": 1},
        **{"FeatureMap margin": 1, "logit margin": 1, "flag everything": 1},
    },
}


def average(table: pd.DataFrame) -> pd.Series:
    """Return the unweighted mean of every metric over the attacks."""
    return table[list(FIGURES)].mean()


def detect(s: DetectionSettings) -> ExperimentResult:
    """Measure detectors on attacks (Table 4)."""
    specs = attacks_on(s.dataset, s.attacks)
    methods = split_names(s.methods) or list(DETECTORS)
    for name in methods:
        check_name("method", name, DETECTORS)
    network = load_classifier(s.model, s.dataset)
    normal = datasets.load(s.dataset, f"train[:{s.train}]", normalise=s.normalise).x
    # Attack → originals and successful adversarial examples, as model inputs.
    scale = datasets.normalisation(s.dataset, s.normalise)
    images = datasets.load(s.dataset, f"test[{s.skip}:{s.skip + s.images}]")
    im = InstrumentedModel(network)
    slicer = Slicer(im, Profile.from_data(im, normal), s.theta)
    seconds = estimated_seconds(slicer, normal, len(images), specs, methods)
    # Every attack is compiled, and every detector fitted.
    seconds += _SECONDS_EACH * (len(specs) + len(methods))
    print(
        f"{len(specs)} attacks on {len(images)} images, then {len(methods)} detectors that learn "
        f"from {len(normal)}: about {math.ceil(seconds / 60)} min. Stop it with Ctrl-C; the same "
        f"command goes on with what is finished in {s.work}.",
        flush=True,
    )
    normalise = None if s.normalise == "unit" else scale
    made = examples(network, specs, images, s.work, rng=s.seed, normalise=normalise)
    pairs = {
        spec.name: [scale.apply(x[one.success] * scale.maximum) for x in (images.x, one.x)]
        for spec, one in made
        if one.success.any()
    }

    # A row for each method and attack; rows of finished methods are kept.
    made_from = {"weights": im.fingerprint, "train": len(normal), "attacks": sorted(pairs)}
    fields = ("normalise", "skip", "images", "theta", "false_positive_rate", "seed")
    store = RowStore.of(s, f"rows/{s.model}-{s.dataset}", ["method"], *fields, **made_from)

    def evaluated(method: str) -> list[dict]:
        options = {"false_positive_rate": s.false_positive_rate, "rng": s.seed}
        rows = evaluate(DETECTORS[method](slicer, **options).fit(normal), pairs)
        print(f"{method}: {average(rows).round(3).to_dict()}", flush=True)
        return rows.to_dict("records")

    rows = store.fill([{"method": name} for name in methods], evaluated, "Detectors")

    # Averages, then the rows, beside the paper's figures.
    means = [
        {"attack": "Average", "examples": part["examples"].sum(), "method": name, **average(part)}
        for name, part in rows.groupby("method", sort=False)
    ]
    table = pd.concat([pd.DataFrame(means), rows], ignore_index=True)
    of_paper = ["precision", "recall", "f1"]
    published = paper_frame("nnslicer/table4").set_index(["attack", "method"])[of_paper]
    for i, row in table.iterrows():
        if row["method"] not in _NOT_IN_THE_PAPER:
            role = _PAPER.get(row["method"].removesuffix(" margin"), "NNSlicer")
            for figure in of_paper:
                table.loc[i, f"paper_{figure}"] = published.loc[(row["attack"], role), figure]
    columns = ["method", "attack", "examples", *FIGURES, *(f"paper_{f}" for f in of_paper)]
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "normal inputs": f"{len(normal)} of train, a quarter of them held out for the threshold",
        "attacked images": f"test[{s.skip}:{s.skip + s.images}]",
        "theta of the slices": str(s.theta),
        "false-positive rate asked": str(s.false_positive_rate),
        "seed": str(s.seed),
        "libraries": versions("scikit-learn", "foolbox"),
        "paper_*": "Zhang et al., ESEC/FSE 2020, Table 4 (ResNet10, CIFAR-10), means of 17 attacks",
    }
    name = f"{Path(s.model).stem}-{s.dataset}{s.ending}" + f"-from{s.skip}" * bool(s.skip)
    if s.false_positive_rate != DEFAULT_RATE:
        name += f"-rate{s.false_positive_rate:g}"

    # The budgets of all attacks for the data set, not only of those requested.
    budgets = pd.DataFrame(
        {
            "attack": spec.name,
            "family": spec.family,
            "class": spec.factory.replace(":", "."),
            "parameters": ", ".join(f"{k}={v}" for k, v in spec.parameters.items()),
            "norm": spec.norm,
            "epsilon": spec.epsilon,
            "starts from": spec.start.name if spec.start else "",
        }
        for spec in attacks_on(s.dataset)
    )
    libraries, title = {"libraries": versions("foolbox")}, "Attacks and their budgets"
    tables = [
        ExperimentTable(f"attacks-{s.dataset}", budgets, title, libraries),
        ExperimentTable(
            name, table.reindex(columns=columns), "Detection of adversarial inputs", head
        ),
    ]
    view = partial(view_of_pairs, slicer, pairs.values())
    return ExperimentResult(tables, figures(name, rows), view=view)


def view_of_pairs(slicer: Slicer, pairs: Collection[Sequence[np.ndarray]]) -> Explorer:
    """Return a view of the slices of inputs and adversarial versions, the first of each attack."""
    each = -(-MAX_PAIRS // len(pairs))
    sides = (np.concatenate([x[:each] for x in side]) for side in zip(*pairs, strict=True))
    inputs = dict(zip(("normal", "adversarial"), (x[:MAX_PAIRS] for x in sides), strict=True))
    slices = {name: slicer.slice_each(x, outputs="predicted") for name, x in inputs.items()}
    title = f"Normal and adversarial inputs of {slicer.im.model.name}"
    return explore(slices, slicer.im, inputs, profile=slicer.profile, title=title)


def estimated_seconds(
    slicer: Slicer,
    normal: np.ndarray,
    images: int,
    attacks: Iterable[AttackSpec],
    methods: Iterable[str],
) -> float:
    """Return about how long attacks and detectors take, from passes and slices of a few inputs."""
    im, x = slicer.im, normal[:_TIMED]
    few = x[:_TIMED_PATHS]
    units: dict[str, tuple[int, Callable[[], object]]] = {
        "passes": (len(x), lambda: im.logits(x)),
        "gradients": (len(x), lambda: im.gradients(x, [0] * len(x))),
        "slices": (len(x), lambda: list(slicer.iterate(x, kernels=list(im.kernels)))),
        "paths": (len(few), lambda: effective_paths(im, few, progress=False)),
    }
    total = 0.0
    for name, (inputs, run) in units.items():
        count = images * sum(_COSTS[name].get(spec.name, 0) for spec in attacks)
        count += (len(normal) + 2 * images) * sum(_COSTS[name].get(m, 0) for m in methods)
        if count:
            run()  # compiles
            start = time.perf_counter()
            run()
            total += count * (time.perf_counter() - start) / inputs
    return total


def figures(name: str, rows: pd.DataFrame) -> list[ExperimentFigure]:
    """Return the figures for a table of detectors and attacks, without averages."""
    rows = rows[rows["attack"] != "Average"]
    means = rows.groupby("method")["f1"].mean()
    best = means.idxmax()
    finding = f"Mean F1 over {rows['attack'].nunique()} attacks: {best} {means[best]:.2f}"
    if "paper" in means:
        finding += f", the paper's rule {means['paper']:.2f}"
    # Plot precision against recall: a point for each attack, a colour for each method.
    figure = Figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    for method, part in rows.groupby("method", sort=False):
        marker, colour = MARKERS[str(method)], METHODS[str(method)]
        axis.scatter(part["recall"], part["precision"], 28, colour, marker=marker, label=method)
    for f1 in (0.667, 0.91):
        recall = np.linspace(f1 / (2 - f1), 1, 50)
        axis.plot(recall, f1 * recall / (2 * recall - f1), color="grey", linewidth=0.8)
        axis.annotate(f"F1 {f1}", (recall[0], 1.01), fontsize=8, ha="center")
    axis.set(xlabel="recall", ylabel="precision", xlim=(-0.03, 1.03), ylim=(-0.03, 1.06))
    axis.set_title(finding)
    figure.legend(loc="outside right upper")
    # Plot the F1 of every method on every attack as an annotated heat map.
    table = rows.pivot(index="attack", columns="method", values="f1")
    table = table.loc[rows["attack"].unique(), rows["method"].unique()]
    f1 = ExperimentFigure(f"{name}-f1", plot_numbers(table, finding))
    return [ExperimentFigure(name, figure), f1]
