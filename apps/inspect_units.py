"""Inspect networks: which units follow what, and what follows from it.

    python apps/inspect_units.py units      # channels of a CIFAR-10 network
    python apps/inspect_units.py prune      # remove those that follow no target class
    python apps/inspect_units.py explore    # differences from what digit networks miss

Every command has --quick. The networks are the zoo's, with the weights that come with it.
"""

from pathlib import Path
from typing import Annotated

import keras
import matplotlib
import numpy as np
import pandas as pd
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, deepbase, deepxplore, zoo
from nnslicer_tf._files import data_folder
from nnslicer_tf.deepbase import per_record
from nnslicer_tf.pruning import remove_units
from nnslicer_tf.report import markdown_table, provenance, save_figure, write_table

matplotlib.use("Agg")

app = typer.Typer(add_completion=False, help=__doc__)

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
HUES = {"red": 0, "yellow": 60, "green": 120, "cyan": 180, "blue": 240, "magenta": 300}
TARGETS = ("cat", "dog", "horse")

Seed = Annotated[int, typer.Option(help="Random seed.", min=0)]
Results = Annotated[Path | None, typer.Option(help="Folder of the tables.")]
Quick = Annotated[bool, typer.Option(help="Few records; a trial.")]


@app.command()
def units(
    records: Annotated[int, typer.Option(help="Training images.", min=100)] = 2000,
    error: Annotated[float, typer.Option(help="Asked error of a score.")] = 0.05,
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Find the channels that follow brightness, hues, edge directions and classes."""
    records = 300 if quick else records
    data = datasets.load("cifar10", f"train[:{records}]")
    hypotheses = {
        "brightness": deepbase.brightness,
        **{f"hue {name}": deepbase.hue(degrees) for name, degrees in HUES.items()},
        **{f"edge {angle}°": deepbase.edge_direction(angle) for angle in (0, 45, 90, 135)},
    }
    im = nns.InstrumentedModel(zoo.load("resnet10", "cifar10"))
    options = {"error": error, "block_size": 64}
    spread = deepbase.inspect(im, data.x, hypotheses, units="st*_relu", **options)
    classes = deepbase.classes(data.y, CLASSES)
    whole = deepbase.inspect(im, data.x, classes, units=["st*_relu", "average"], **options)
    frame = pd.concat([spread, whole], ignore_index=True)
    folder = _folder(results, quick)
    head = {
        "network": "resnet10 of the zoo, channels after each ReLU",
        "records": f"CIFAR-10 train[:{records}]; asked error {error} with 95 % confidence",
        "pairs": f"{len(frame)}, on average from {frame['records'].mean():.0f} records",
    }
    best = deepbase.best_units(frame, 3).drop(columns=["model", "measure"])
    _write(folder / "units", "The three channels nearest to each hypothesis", best, head)
    _draw(folder / "units.png", frame)


@app.command()
def prune(
    records: Annotated[int, typer.Option(help="Training images.", min=100)] = 2000,
    seed: Seed = 0,
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Remove channels without affinity to three classes; tell these three apart."""
    data = datasets.load("cifar10", f"train[:{300 if quick else records}]")
    test = datasets.load("cifar10", "test")
    labels = [CLASSES.index(name) for name in TARGETS]
    kept = np.isin(test.y, labels)
    x, y = test.x[kept], np.searchsorted(labels, test.y[kept])
    im = nns.InstrumentedModel(zoo.load("resnet10", "cifar10"))
    classes = deepbase.classes(data.y, CLASSES)
    frame = deepbase.inspect(im, data.x, classes, units="stage*_1_conv")
    rng = np.random.default_rng(seed)
    rows = [{"at least": 0.0, "removed": "none", **_three_way(im.model, x, y, labels)}]
    for at_least in (0.1, 0.2) if quick else (0.05, 0.1, 0.15, 0.2, 0.25, 0.3):
        masks = deepbase.keep_masks(frame, im, TARGETS, at_least)
        ways = {
            "without affinity": masks,
            "drawn by chance": {name: rng.permutation(mask) for name, mask in masks.items()},
            "with most affinity": _reversed(frame, masks),
        }
        removed = sum(int((~mask).sum()) for mask in masks.values())
        for how, chosen in ways.items():
            row = {"at least": at_least, "removed": how, "channels removed": removed}
            rows.append(row | _three_way(remove_units(im.model, chosen), x, y, labels))
            print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    columns = ["at least", "removed", "channels removed", "parameters", "accuracy"]
    head = {
        "network": f"resnet10 of the zoo, {sum(m.size for m in masks.values())} inner channels",
        "affinity": f"|correlation| with one of {', '.join(TARGETS)}, on {len(data)} images",
        "accuracy": f"among these three, on {len(x)} test images; nothing is trained afterwards",
        "seed": seed,
    }
    title = "Removing channels by their affinity to three classes"
    _write(_folder(results, quick) / "prune", title, table[columns], head)


@app.command()
def explore(
    seeds: Annotated[int, typer.Option(help="Seeds of each kind.", min=10)] = 100,
    seed: Seed = 0,
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Start DeepXplore from the images on which a hypothesis that no unit follows is strong."""
    seeds = 30 if quick else seeds
    inspected = datasets.load("mnist", f"train[:{500 if quick else 2000}]")
    test = datasets.load("mnist", "test")
    ims = [nns.InstrumentedModel(zoo.load(name, "mnist")) for name in ("lenet", "lenet5", "mlp")]
    hypotheses = {
        "brightness": per_record(deepbase.brightness),
        "slant": _slant,
        "height of the centre": _height,
        "side of the centre": _side,
        "aspect ratio": _aspect,
        **{
            f"edge {angle}°": per_record(deepbase.edge_direction(angle))
            for angle in (0, 45, 90, 135)
        },
    }
    best = []
    for im in ims:  # the last hidden layer, of which the output is made
        hidden = im[im.logit_operation].inputs[0]
        frame = deepbase.inspect(im, inspected.x, hypotheses, units=hidden)
        best.append(deepbase.best_units(frame, 1).set_index("hypothesis")["score"].abs())
    affinity = pd.concat(best, axis=1).max(axis=1)
    rng = np.random.default_rng(seed)
    chosen = {"drawn by chance": rng.choice(len(test), seeds, replace=False)}
    for name in affinity.sort_values().index:
        values = hypotheses[name](test.x)
        extreme = np.abs(values - values.mean())
        chosen[name] = np.argsort(-extreme, kind="stable")[:seeds]
    rows = []
    for name, indices in chosen.items():
        row = {"seeds where strong": name, "best |correlation|": affinity.get(name, np.nan)}
        for constraint in ("light", "blackout"):
            found = deepxplore.generate(ims, test.x[indices], constraint, rng=seed)
            row["models disagree on seeds"] = int((~found.generated).sum())
            row[f"found, {constraint}"] = found.success_rate
        rows.append(row)
        print(row, flush=True)
    head = {
        "networks": "lenet, lenet5 and mlp of the zoo; units of their last hidden layers",
        "records": f"inspected MNIST train[:{len(inspected)}], seeds from its test images",
        "seeds": f"{seeds} of each kind; a hypothesis is strong where it is far from its mean",
        "random seed": seed,
    }
    title = "Differences from seeds on which a hypothesis is strong, the least followed first"
    _write(_folder(results, quick) / "explore", title, pd.DataFrame(rows), head)


def _three_way(model: keras.Model, x: np.ndarray, y: np.ndarray, labels: list[int]) -> dict:
    logits = model.predict(x, verbose=0)[:, labels]
    accuracy = float((logits.argmax(axis=1) == y).mean())
    return {"parameters": model.count_params(), "accuracy": accuracy}


def _reversed(frame: pd.DataFrame, masks: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return masks that remove as many channels, those of most affinity."""
    rows = frame[frame["hypothesis"].isin(TARGETS)]
    found = {}
    for name, mask in masks.items():
        largest = rows[rows["group"] == name]["score"].abs().fillna(0)
        largest = largest.groupby(rows["unit"]).max().to_numpy(float)
        found[name] = np.ones(len(mask), bool)
        found[name][np.argsort(-largest)[: int((~mask).sum())]] = False
    return found


def _centred(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the ink of images, and every pixel's distance from its centre down and right."""
    ink = x[..., 0] / x[..., 0].sum(axis=(1, 2), keepdims=True)
    rows, columns = np.arange(x.shape[1])[:, None], np.arange(x.shape[2])[None]
    down = rows - (ink * rows).sum(axis=(1, 2), keepdims=True)
    right = columns - (ink * columns).sum(axis=(1, 2), keepdims=True)
    return ink, down, right


def _slant(x: np.ndarray) -> np.ndarray:
    ink, down, right = _centred(x)
    return (ink * down * right).sum(axis=(1, 2)) / (ink * down**2).sum(axis=(1, 2))


def _aspect(x: np.ndarray) -> np.ndarray:
    ink, down, right = _centred(x)
    return np.sqrt((ink * right**2).sum(axis=(1, 2)) / (ink * down**2).sum(axis=(1, 2)))


def _height(x: np.ndarray) -> np.ndarray:
    return -_centred(x)[1][:, 0, 0]


def _side(x: np.ndarray) -> np.ndarray:
    return -_centred(x)[2][:, 0, 0]


def _folder(results: Path | None, quick: bool) -> Path:
    kept = Path("runs/deepbase/quick") if quick else data_folder() / "results" / "deepbase"
    return results or kept


def _write(path: Path, title: str, table: pd.DataFrame, head: dict) -> None:
    write_table(path, title, table, provenance(**head))
    print(f"{title}\n{markdown_table(table)}\n-> {path}.md", flush=True)


def _draw(path: Path, frame: pd.DataFrame) -> None:
    """Draw the largest |correlation| of each layer's channels with each hypothesis."""
    from matplotlib import pyplot

    largest = frame.assign(score=frame["score"].abs()).pivot_table(
        index="hypothesis", columns="group", values="score", aggfunc="max", sort=False
    )
    figure, axis = pyplot.subplots(figsize=(8, 7), layout="constrained")
    image = axis.imshow(largest, vmin=0, vmax=1, cmap="viridis")
    axis.set_xticks(range(largest.shape[1]), largest.columns, rotation=60, ha="right")
    axis.set_yticks(range(len(largest)), largest.index)
    figure.colorbar(image, label="largest |correlation| of a channel")
    save_figure(figure, path, dpi=100)


if __name__ == "__main__":
    app()
