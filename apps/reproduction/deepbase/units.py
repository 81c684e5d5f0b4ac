"""Hypotheses that units of image networks follow, and what to do with those that none follows.

`units` and `prune` inspect channels of a CIFAR-10 network. `explore` chooses seeds for DeepXplore
by properties that no unit of digit networks follows.
"""

from collections.abc import Callable
from functools import partial

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets, deepbase, deepxplore, zoo
from nnslicer_tf.datasets import named
from nnslicer_tf.deepbase import per_record
from nnslicer_tf.deepbase.hypotheses import Behaviour
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning import remove_units
from reproduction.deepbase.following import following_units
from reproduction.deepbase.settings import ExplorationSettings, PruningSettings, UnitSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable

CLASSES = named.CLASSES["cifar10"]
_TARGETS = ("cat", "dog", "horse")

_HUES = {"red": 0, "yellow": 60, "green": 120, "cyan": 180, "blue": 240, "magenta": 300}


def hue(degrees: float) -> Behaviour:
    """Return the hypothesis "this pixel's colour is of this hue": 0 red, 120 green, 240 blue.

    It is the pixel's chroma times the cosine of the angle between the hues, so 0 for grey.
    """
    angle = np.deg2rad(degrees)
    cosine, sine = np.cos(angle), np.sin(angle)

    def behaviour(x: np.ndarray) -> np.ndarray:
        if x.shape[-1] != 3:
            raise InvalidArgumentError(f"Hue needs RGB images. Received: {x.shape}")
        red, green, blue = x[..., 0], x[..., 1], x[..., 2]
        return cosine * (red - (green + blue) / 2) + sine * np.sqrt(0.75) * (green - blue)

    return behaviour


def units(s: UnitSettings) -> ExperimentResult:
    """Find the channels that follow brightness, hues, edge directions and classes."""
    data = datasets.load("cifar10", f"train[:{s.records}]")
    hypotheses = {
        "brightness": deepbase.brightness,
        **{f"hue {name}": hue(degrees) for name, degrees in _HUES.items()},
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
    sizes, options = frame.assign(score=frame["score"].abs()), {"aggfunc": "max", "sort": False}
    largest = sizes.pivot_table("score", "hypothesis", "group", **options).reset_index()
    best = deepbase.best_units(frame, 3).drop(columns=["model", "measure"])
    title = "The three channels nearest to each hypothesis"
    tables = [ExperimentTable("units", best, title, head), ExperimentTable("units-layers", largest)]
    return ExperimentResult(tables, [ExperimentFigure("units", plot(largest), dpi=100)])


def prune(s: PruningSettings) -> ExperimentResult:
    """Remove channels without affinity to three classes; measure accuracy among the three."""
    data, test = datasets.load("cifar10", f"train[:{s.records}]"), datasets.load("cifar10", "test")
    labels = [CLASSES.index(name) for name in _TARGETS]
    kept = np.isin(test.y, labels)
    x, y = test.x[kept], np.searchsorted(labels, test.y[kept])
    im = InstrumentedModel(zoo.load("resnet10", "cifar10"))
    frame = deepbase.inspect(im, data.x, deepbase.classes(data.y, CLASSES), units="stage*_1_conv")
    targeted = frame[frame["hypothesis"].isin(_TARGETS)]
    rng = np.random.default_rng(s.seed)
    rows = [{"at least": 0.0, "removed": "none", **_three_way(im.model, x, y, labels)}]
    for at_least in s.least:
        masks = following_units(frame, im, _TARGETS, at_least)
        choices = {
            "without affinity": masks,
            "drawn by chance": {name: rng.permutation(mask) for name, mask in masks.items()},
            "with most affinity": {},
        }
        # As many channels as the masks remove, but those with the most affinity.
        for name, mask in masks.items():
            largest = targeted[targeted["group"] == name]["score"].abs().fillna(0)
            largest = largest.groupby(targeted["unit"]).max().to_numpy(float)
            most = np.argsort(-largest)[: int((~mask).sum())]
            choices["with most affinity"][name] = ~np.isin(np.arange(len(mask)), most)
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


def _three_way(model: keras.Model, x: np.ndarray, y: np.ndarray, labels: list[int]) -> dict:
    logits = model.predict(x, verbose=0)[:, labels]
    accuracy = float((logits.argmax(axis=1) == y).mean())
    return {"parameters": model.count_params(), "accuracy": accuracy}


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
    return put_finding(figure, f"Hypotheses are followed by different layers: {said}")


def explore(s: ExplorationSettings) -> ExperimentResult:
    """Start DeepXplore from the images on which a hypothesis that no unit follows is strong."""
    inspected = datasets.load("mnist", f"train[:{s.records}]")
    test = datasets.load("mnist", "test")
    ims = [InstrumentedModel(zoo.load(name, "mnist")) for name in ("lenet", "lenet5", "mlp")]
    # Hypothesis → largest |correlation| with any unit of the last hidden layers.
    best = []
    for im in ims:
        hidden = im[im.logit_operation].inputs[0]
        frame = deepbase.inspect(im, inspected.x, HYPOTHESES, units=hidden)
        best.append(deepbase.best_units(frame, 1).set_index("hypothesis")["score"].abs())
    affinity = pd.concat(best, axis=1).max(axis=1)
    rng = np.random.default_rng(s.seed)
    chosen = {"drawn by chance": rng.choice(len(test), s.seeds, replace=False)}
    for name in affinity.sort_values().index:
        values = HYPOTHESES[name](test.x)
        extreme = np.abs(values - values.mean())
        chosen[name] = np.argsort(-extreme, kind="stable")[: s.seeds]
    rows = []
    for name, indices in chosen.items():
        row = {"seeds where strong": name, "best |correlation|": affinity.get(name, np.nan)}
        for constraint in ("light", "blackout"):
            found = deepxplore.generate(ims, test.x[indices], constraint, rng=s.seed)
            row["models disagree on seeds"] = int((~found.generated).sum())
            row[f"found, {constraint}"] = found.success_rate
        rows.append(row)
        print(row, flush=True)
    head = {
        "networks": "lenet, lenet5 and mlp of the zoo; units of their last hidden layers",
        "records": f"inspected MNIST train[:{len(inspected)}], seeds from its test images",
        "seeds": f"{s.seeds} of each kind; a hypothesis is strong where it is far from its mean",
        "random seed": s.seed,
    }
    title = "Differences from seeds on which a hypothesis is strong, the least followed first"
    return ExperimentResult([ExperimentTable("explore", pd.DataFrame(rows), title, head)])


def _centred(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return images scaled to sum 1, and each pixel's distance below and right of the centre."""
    ink = x[..., 0] / x[..., 0].sum(axis=(1, 2), keepdims=True)
    rows, columns = np.arange(x.shape[1])[:, None], np.arange(x.shape[2])[None]
    down = rows - (ink * rows).sum(axis=(1, 2), keepdims=True)
    right = columns - (ink * columns).sum(axis=(1, 2), keepdims=True)
    return ink, down, right


def _relative(x: np.ndarray, p: int, q: int) -> np.ndarray:
    """Return the moment Σ ink · down^p · right^q, relative to the vertical spread."""
    ink, down, right = _centred(x)
    return (ink * down**p * right**q).sum(axis=(1, 2)) / (ink * down**2).sum(axis=(1, 2))


HYPOTHESES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "brightness": per_record(deepbase.brightness),
    "slant": lambda x: _relative(x, 1, 1),
    "height of the centre": lambda x: -_centred(x)[1][:, 0, 0],
    "side of the centre": lambda x: -_centred(x)[2][:, 0, 0],
    "aspect ratio": lambda x: np.sqrt(_relative(x, 0, 2)),
    **{f"edge {angle}°": per_record(deepbase.edge_direction(angle)) for angle in (0, 45, 90, 135)},
}
"""Name → function from images of digits to a number for each."""
