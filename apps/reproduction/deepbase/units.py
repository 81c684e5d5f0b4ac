"""Channels of a CIFAR-10 network: which hypotheses they follow, and pruning based on that."""

from functools import partial

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets, deepbase, zoo
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning import remove_units
from reproduction.deepbase.settings import PruningSettings, UnitSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_TARGETS = ("cat", "dog", "horse")

_HUES = {"red": 0, "yellow": 60, "green": 120, "cyan": 180, "blue": 240, "magenta": 300}


def units(s: UnitSettings) -> ExperimentResult:
    """Find the channels that follow brightness, hues, edge directions and classes."""
    data = datasets.load("cifar10", f"train[:{s.records}]")
    hypotheses = {
        "brightness": deepbase.brightness,
        **{f"hue {name}": deepbase.hue(degrees) for name, degrees in _HUES.items()},
        **{f"edge {angle}°": deepbase.edge_direction(angle) for angle in (0, 45, 90, 135)},
    }
    im = InstrumentedModel(zoo.load("resnet10", "cifar10"))
    inspect = partial(deepbase.inspect, im, data.x, error=s.error, block_size=64)
    spread = inspect(hypotheses, units="st*_relu")
    classes = deepbase.classes(data.y, CLASSES)
    whole = inspect(classes, units=["st*_relu", "average"])
    frame = pd.concat([spread, whole], ignore_index=True)
    head = {
        "network": "resnet10 of the zoo, channels after each ReLU",
        "records": f"CIFAR-10 train[:{s.records}]; asked error {s.error} with 95 % confidence",
        "pairs": f"{len(frame)}, on average from {frame['records'].mean():.0f} records",
    }
    # The largest |correlation| of each layer's channels with each hypothesis.
    largest = frame.assign(score=frame["score"].abs()).pivot_table(
        index="hypothesis", columns="group", values="score", aggfunc="max", sort=False
    )
    largest = largest.reset_index()
    best = deepbase.best_units(frame, 3).drop(columns=["model", "measure"])
    title = "The three channels nearest to each hypothesis"
    return ExperimentResult(
        [
            ExperimentTable("units", best, title, head),
            ExperimentTable("units-layers", largest),
        ],
        [ExperimentFigure("units", plot(largest), dpi=100)],
    )


def prune(s: PruningSettings) -> ExperimentResult:
    """Remove channels without affinity to three classes; measure accuracy among the three."""
    data, test = datasets.load("cifar10", f"train[:{s.records}]"), datasets.load("cifar10", "test")
    labels = [CLASSES.index(name) for name in _TARGETS]
    kept = np.isin(test.y, labels)
    x, y = test.x[kept], np.searchsorted(labels, test.y[kept])
    im = InstrumentedModel(zoo.load("resnet10", "cifar10"))
    frame = deepbase.inspect(im, data.x, deepbase.classes(data.y, CLASSES), units="stage*_1_conv")
    rng = np.random.default_rng(s.seed)
    rows = [{"at least": 0.0, "removed": "none", **_three_way(im.model, x, y, labels)}]
    for at_least in s.least:
        masks = deepbase.keep_masks(frame, im, _TARGETS, at_least)
        choices = {
            "without affinity": masks,
            "drawn by chance": {name: rng.permutation(mask) for name, mask in masks.items()},
            "with most affinity": _reversed(frame, masks),
        }
        removed = sum(int((~mask).sum()) for mask in masks.values())
        for how, chosen in choices.items():
            row = {"at least": at_least, "removed": how, "channels removed": removed}
            rows.append(row | _three_way(remove_units(im.model, chosen), x, y, labels))
            print(rows[-1], flush=True)
    columns = ["at least", "removed", "channels removed", "parameters", "accuracy"]
    head = {
        "network": f"resnet10 of the zoo, {sum(m.size for m in masks.values())} inner channels",
        "affinity": f"|correlation| with one of {', '.join(_TARGETS)}, on {len(data)} images",
        "accuracy": f"among these three, on {len(x)} test images; nothing is trained afterwards",
        "seed": s.seed,
    }
    title = "Removing channels by their affinity to three classes"
    return ExperimentResult([ExperimentTable("prune", pd.DataFrame(rows)[columns], title, head)])


def _three_way(
    model: keras.Model, x: np.ndarray, y: np.ndarray, labels: list[int]
) -> dict[str, float]:
    logits = model.predict(x, verbose=0)[:, labels]
    accuracy = float((logits.argmax(axis=1) == y).mean())
    return {"parameters": model.count_params(), "accuracy": accuracy}


def _reversed(frame: pd.DataFrame, masks: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return masks that remove as many channels, but those with the most affinity."""
    rows = frame[frame["hypothesis"].isin(_TARGETS)]
    found = {}
    for name, mask in masks.items():
        largest = rows[rows["group"] == name]["score"].abs().fillna(0)
        largest = largest.groupby(rows["unit"]).max().to_numpy(float)
        found[name] = np.ones(len(mask), bool)
        found[name][np.argsort(-largest)[: int((~mask).sum())]] = False
    return found


def plot(largest: pd.DataFrame) -> Figure:
    """Draw a table with a row for each `hypothesis` and a column for each layer."""
    values = largest.set_index("hypothesis")
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axis.set_xticks(range(values.shape[1]), list(values.columns), rotation=40, ha="right")
    axis.set_yticks(range(len(values)), list(values.index))
    figure.colorbar(image, label="largest |correlation| of a channel; white: without positions")
    kinds = {"hue": "hues", "edge": "edges", "brightness": "brightness"}
    families = values.groupby(lambda name: kinds.get(name.split()[0], "classes"))
    layers = families.mean().idxmax(axis=1)
    said = ", ".join(f"{family} best by {layer}" for family, layer in layers.items())
    put_finding(figure, f"Hypotheses are followed by different layers: {said}")
    return figure
