"""Detect adversarial inputs: the NNSlicer paper's Table 4, with measured figures beside it.

    python apps/detect_adversarial.py --quick
    python apps/detect_adversarial.py --model lenet5 --dataset mnist
    python apps/detect_adversarial.py --model resnet10 --dataset cifar10 --methods fused

Every detector learns from the same normal training inputs. Each attack works on test
images, the same for all; its successful examples and their originals are the test.
Adversarial examples and the figures of finished detectors are kept in the working folder: an
interrupted run goes on from there. Remove its `rows` after changing a detector's code.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import keras
import matplotlib
import numpy as np
import pandas as pd
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import atomic_path, data_folder
from nnslicer_tf._names import check_name
from nnslicer_tf.baselines import EffectivePath, FeatureMap, FlagEverything, LogitMargin
from nnslicer_tf.detection import Detector, SliceDetector, evaluate
from nnslicer_tf.detection.attacks import (
    ATTACKS,
    MNIST_ATTACKS,
    AttackSpec,
    find_attack,
    generate,
)
from nnslicer_tf.detection.evaluation import FIGURES, average
from nnslicer_tf.instrument.loading import load_model
from nnslicer_tf.report import provenance, save_figure, write_table

matplotlib.use("Agg")

_RATE = 0.05
_QUICK_ATTACKS = (
    *("FGSM_2", "FGSM_4", "FGSM_8", "DeepFoolLinf", "DeepFoolL2"),
    *("RPGD_2", "RPGD_4", "RPGD_8", "Spatial", "GaussianBlur"),
)
# Method → how a detector is made of a slicer and the arguments that all detectors take.
_METHODS: dict[str, Callable[..., Detector]] = {
    "paper": lambda slicer, **common: SliceDetector(slicer, "paper", **common),
    "margin": lambda slicer, **common: SliceDetector(slicer, "margin", **common),
    "fused": lambda slicer, **common: SliceDetector(slicer, "fused", **common),
    "stable": lambda slicer, **common: SliceDetector(slicer, "stable", **common),
    "FeatureMap": lambda slicer, **common: FeatureMap(slicer.im, **common),
    "FeatureMap margin": lambda slicer, **common: FeatureMap(slicer.im, "margin", **common),
    "EffectivePath": lambda slicer, **common: EffectivePath(slicer.im, **common),
    "EffectivePath margin": lambda slicer, **common: EffectivePath(slicer.im, "margin", **common),
    "logit margin": lambda slicer, **common: LogitMargin(slicer.im, **common),
    "flag everything": lambda slicer, **common: FlagEverything(slicer.im, **common),
}
# The method whose role in the paper each of ours has.
_PAPER = {"FeatureMap": "FeatureMap", "EffectivePath": "EffectivePath"}


def main(
    model: Annotated[str, typer.Option(help="Name in the zoo, or a .keras or .h5 file.")] = (
        "lenet5"
    ),
    dataset: Annotated[str, typer.Option(help="digits, mnist, fashion_mnist, cifar10.")] = "mnist",
    normalise: Annotated[str, typer.Option(help="unit or standard: the model's input.")] = "unit",
    train: Annotated[int, typer.Option(help="Normal training inputs.", min=200)] = 10_000,
    images: Annotated[int, typer.Option(help="Test images to attack.", min=1)] = 500,
    skip: Annotated[int, typer.Option(help="Test images to leave out before these.", min=0)] = 0,
    attacks: Annotated[str, typer.Option(help="Names with commas; default: all 17.")] = "",
    methods: Annotated[str, typer.Option(help="Names with commas.")] = ",".join(_METHODS),
    theta: Annotated[float, typer.Option(help="Threshold of the slices.", min=0)] = 0.0,
    false_positive_rate: Annotated[float, typer.Option(help="All but paper's rules.")] = _RATE,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    work: Annotated[Path, typer.Option(help="Folder of the examples.")] = Path("runs/detection"),
    results: Annotated[Path | None, typer.Option(help="Folder of the tables.")] = None,
    quick: Annotated[bool, typer.Option(help="4,000 inputs, 100 images, 10 attacks.")] = False,
) -> None:
    """Measure detectors on attacks, and write the tables."""
    if quick:
        train, images, attacks = 4_000, 100, attacks or ",".join(_QUICK_ATTACKS)
    table = ATTACKS if dataset == "cifar10" else MNIST_ATTACKS
    specs = [find_attack(name, table) for name in _names(attacks) or table]
    chosen = {name: _method(name) for name in _names(methods)}
    results = results or data_folder() / "results" / "detection"
    results.mkdir(parents=True, exist_ok=True)
    _write_attacks(results / f"attacks-{dataset}", table.values())
    slug = f"{Path(model).stem}-{dataset}" + ("-quick" if quick else "")
    if false_positive_rate != _RATE:
        slug += f"-rate{false_positive_rate:g}"

    network = _network(model, dataset)
    scale = datasets.normalisation(dataset, normalise)
    normal = datasets.load(dataset, f"train[:{train}]", normalise=normalise).x
    targets = datasets.load(dataset, f"test[{skip}:{skip + images}]")
    pairs = {}
    for spec in specs:
        made = generate(
            network,
            spec,
            targets.x,
            targets.y,
            normalise=None if normalise == "unit" else scale,
            rng=seed,
            cache=work / "examples",
        )
        print(f"{spec.name}: {made.success.sum()} of {len(targets)} mislead the model", flush=True)
        if made.success.any():
            pairs[spec.name] = tuple(
                scale.apply(x[made.success] * scale.maximum) for x in (targets.x, made.x)
            )

    im = nns.InstrumentedModel(network)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, normal), theta)
    asked = {
        "model": im.fingerprint,
        "sizes": [len(normal), skip, images],
        "attacks": sorted(pairs),
        "detector": [theta, false_positive_rate, seed],
    }
    parts = []
    for name, make in chosen.items():
        kept = _rows_file(work, name, asked)
        if not kept.exists():
            detector = make(slicer, false_positive_rate=false_positive_rate, rng=seed)
            with atomic_path(kept) as path:
                evaluate(detector.fit(normal), pairs).to_csv(path, index=False)
        rows = pd.read_csv(kept)
        print(f"{name}: {average(rows).round(3).to_dict()}", flush=True)
        parts.append(rows.assign(method=name))
    rows = pd.concat(parts, ignore_index=True)
    used = {
        "model and data": f"{model} on {dataset}",
        "normal inputs": f"{len(normal)} of train, a quarter of them held out for the threshold",
        "attacked images": f"test[{skip}:{skip + images}]",
        "theta of the slices": str(theta),
        "false-positive rate asked": str(false_positive_rate),
        "seed": str(seed),
    }
    _write(results, slug, _with_averages(rows), used)
    _plot(results / f"{slug}.png", rows)


def _write_attacks(path: Path, specs: Iterable[AttackSpec]) -> None:
    """Write what bounds each attack of a data set, whichever of them are asked for."""
    rows = [
        {
            "attack": spec.name,
            "family": spec.family,
            "class": spec.factory.replace(":", "."),
            "parameters": ", ".join(f"{k}={v}" for k, v in spec.parameters.items()),
            "norm": spec.norm,
            "epsilon": spec.epsilon,
            "starts from": spec.start.name if spec.start else "",
        }
        for spec in specs
    ]
    head = provenance(libraries=_libraries("foolbox"))
    write_table(path, "Attacks and their budgets", pd.DataFrame(rows), head)


def _libraries(*names: str) -> str:
    return ", ".join(f"{name} {version(name)}" for name in names)


def _rows_file(work: Path, method: str, asked: dict[str, object]) -> Path:
    """Return the file of a method's finished rows, by all that they depend on."""
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    folder = work / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{method.replace(' ', '_')}-{digest}.csv"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _method(name: str) -> Callable[..., Detector]:
    check_name("method", name, _METHODS)
    return _METHODS[name]


def _network(model: str, dataset: str) -> keras.Model:
    return load_model(model) if Path(model).suffix else zoo.load(model, dataset)


def _with_averages(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each method and attack, and averages, the paper's figures beside."""
    parts = []
    for method, of_method in rows.groupby("method", sort=False):
        mean = {"attack": "Average", "examples": of_method["examples"].sum(), "method": method}
        parts += [of_method, pd.DataFrame([{**mean, **average(of_method)}])]
    table = pd.concat(parts, ignore_index=True)
    paper = pd.read_csv(data_folder() / "paper/nnslicer/table4.csv", comment="#")
    figures = ["precision", "recall", "f1"]
    published = paper.set_index(["attack", "method"])[figures]
    roles = [_PAPER.get(name.removesuffix(" margin"), "NNSlicer") for name in table["method"]]
    for i, row in table.iterrows():
        if row["method"] in ("logit margin", "flag everything"):
            continue
        for figure in figures:
            table.loc[i, f"paper_{figure}"] = published.loc[(row["attack"], roles[i]), figure]
    columns = ["method", "attack", "examples", *FIGURES, *(f"paper_{f}" for f in figures)]
    return table.reindex(columns=columns)


def _write(folder: Path, name: str, table: pd.DataFrame, used: dict[str, str]) -> None:
    libraries = _libraries("scikit-learn", "foolbox")
    source = "Zhang et al., ESEC/FSE 2020, Table 4 (ResNet10, CIFAR-10), means of 17 attacks"
    head = provenance(**used, libraries=libraries, **{"paper_*": source})
    average = table["attack"] == "Average"
    ordered = pd.concat([table[average], table[~average]])
    write_table(folder / name, "Detection of adversarial inputs", ordered, head)
    print(table[average].to_string(index=False), f"\nwritten: {folder / name}.csv, .md, .png")


def _plot(path: Path, rows: pd.DataFrame) -> None:
    """Draw precision against recall: a point for each attack, a colour for each method."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 5))
    markers = "osD^vP*X<>"
    for i, (method, of_method) in enumerate(rows.groupby("method", sort=False)):
        axis.scatter(
            of_method["recall"], of_method["precision"], 28, label=method, marker=markers[i % 10]
        )
    for f1 in (0.667, 0.91):
        recall = np.linspace(f1 / (2 - f1), 1, 50)
        axis.plot(recall, f1 * recall / (2 * recall - f1), color="grey", linewidth=0.8)
        axis.annotate(f"F1 {f1}", (recall[0], 1.01), fontsize=7, ha="center")
    axis.set(xlabel="recall", ylabel="precision", xlim=(-0.03, 1.03), ylim=(-0.03, 1.06))
    axis.legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    save_figure(figure, path, dpi=110)


if __name__ == "__main__":
    typer.run(main)
