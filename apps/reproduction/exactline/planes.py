"""Exact planes: adversarial neighbourhoods, averaged baselines, and quantised weights."""

from collections.abc import Mapping
from dataclasses import fields

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets
from nnslicer_tf._checks import as_generator, counted
from nnslicer_tf._environment import track
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.exactline import Attributor, PlaneWalker, exact_plane
from nnslicer_tf.exactline.planar_partition import PlanarClasses
from nnslicer_tf.exactline.plane import rectangle
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.copies import copy_model
from nnslicer_tf.report import plot_over_image
from reproduction.exactline import settings
from reproduction.exactline.disagreements import disagreement
from reproduction.exactline.measures import fgsm, random_neighbours, relative_error
from reproduction.exactline.networks import EPSILON, networks_of
from reproduction.exactline.polygons import mean_integrated_gradients
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, compact, note
from reproduction.zoo.models import zoo


def neighbourhoods(s: settings.NeighbourhoodSettings) -> ExperimentResult:
    """Measure areas and margins on planes through images, for normal and robust networks."""
    rows = []
    networks = {key: InstrumentedModel(model) for key, model in networks_of("convsmall").items()}
    for (dataset, method), im in networks.items():
        data = datasets.load(dataset, f"test[:{s.images}]")
        walker = PlaneWalker(im)
        triangles = _triangles(im, data, dataset, s.seed)
        for i in track(range(len(data)), f"{dataset} {method}", len(data)):
            row = {"dataset": dataset, "training": method, "image": i, "label": data.y[i]}
            partition = walker.plane(triangles[i])
            row["right"] = bool(im.logits(data.x[i : i + 1])[0].argmax() == data.y[i])
            row["regions"] = len(partition)
            row["other_percent"] = 100 * (1 - partition.classify().area(int(data.y[i])))
            margin = partition.margin(int(data.y[i]))
            row |= {"margin": margin.value, "against": margin.other}
            rows.append(row)
    table = pd.DataFrame(rows)
    right = table[table.right].assign(others=table.margin < 0)
    summary = right.groupby(["dataset", "training"], sort=False, as_index=False).agg(
        images=("image", "size"),
        regions_mean=("regions", "mean"),
        other_percent_mean=("other_percent", "mean"),
        triangles_with_others=("others", "sum"),
        margin_median=("margin", "median"),
    )
    title = "Triangles of an image, its FGSM neighbour and a random one"
    head = {"epsilon": EPSILON, "images": s.images, "seed": s.seed}
    drawn = _drawn_triangles(networks, table, s.seed)
    means = ExperimentTable("neighbourhoods", summary, title, head, note("neighbourhoods"))
    figure = ExperimentFigure("neighbourhoods", plot_triangles(drawn), drawn=drawn)
    return ExperimentResult([ExperimentTable("neighbourhoods_images", table), means], [figure])


def _triangles(im: InstrumentedModel, data: Dataset, dataset: str, seed: int) -> np.ndarray:
    """Return images with their FGSM and random neighbours, `(images, 3, *input shape)`."""
    x, epsilon = data.x, EPSILON[dataset]
    neighbours = fgsm(im, x, data.y, epsilon), random_neighbours(x, epsilon, seed)
    return np.stack([np.asarray(x, np.float64), *neighbours], axis=1)


def _drawn_triangles(networks: dict, table: pd.DataFrame, seed: int) -> dict[str, np.ndarray]:
    """Return the triangle of the first image that all networks of a data set get right."""
    drawn: dict[str, np.ndarray] = {}
    for (dataset, method), im in networks.items():
        right = table[table.dataset == dataset].groupby("image").right.all()
        image = int(right[right].index[0]) if right.any() else 0
        data = datasets.load(dataset, f"test[:{image + 1}]")
        triangle = _triangles(im, data, dataset, seed)[image]
        partition = PlaneWalker(im).plane(triangle)
        classes = partition.classify()
        arrays = {f.name: compact(getattr(classes, f.name)) for f in fields(PlanarClasses)}
        arrays["regions"] = np.array(len(partition))
        drawn |= {f"{dataset} {method}/{name}": array for name, array in arrays.items()}
    return drawn


def plot_triangles(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the triangles, one row per data set."""
    names = list(dict.fromkeys(key.partition("/")[0] for key in drawn))
    rows = list(dict.fromkeys(name.split()[0] for name in names))
    columns = max(sum(name.split()[0] == row for name in names) for row in rows)
    figure = Figure(figsize=(3 * columns, 3 * len(rows) + 0.6), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for name in names:
        row = rows.index(name.split()[0])
        column = [other for other in names if other.split()[0] == rows[row]].index(name)
        attributes = {f.name: drawn[f"{name}/{f.name}"] for f in fields(PlanarClasses)}
        PlanarClasses(**attributes).plot(axes[row, column], regions=True)
        count = int(drawn[f"{name}/regions"])
        axes[row, column].set_title(f"{name}: {counted(count, 'region')}", fontsize=9)
        axes[row, column].get_legend().set(loc="upper right", bbox_to_anchor=(1, 1))
        axes[row, column].set(xlabel="", ylabel="")
        axes[row, column].tick_params(labelsize=8)
    figure.supxlabel("from the image to FGSM (Euclidean)", fontsize=9)
    figure.supylabel("towards the random neighbour", fontsize=9)
    counts = {name: int(drawn[f"{name}/regions"]) for name in names}
    most, least = (choose(counts, key=counts.__getitem__) for choose in (max, min))
    return put_finding(
        figure,
        f"From {counted(counts[least], 'region')} ({least}) to {counts[most]:,} "
        f"({most}) around one image",
    )


COUNTS = (1, 10, 100)
"""Numbers of sampled baselines with which the exact mean is compared."""


def baselines(s: settings.BaselineSettings) -> ExperimentResult:
    """Compare the exact mean over a polygon of baselines with sample means."""
    data = datasets.load("digits", f"test[:{s.images}]")
    im = InstrumentedModel(zoo.load("digits_cnn"))
    attributor = Attributor(im)
    rng = as_generator(s.seed)
    rows: list[dict[str, object]] = []
    drawn: dict[str, np.ndarray] = {}
    for i in track(range(len(data)), "Images", len(data)):
        x = np.asarray(data.x[i], np.float64)
        # The corners of the square of baselines of an image.
        noise = rng.normal(size=x.shape)
        noise -= (noise * x).sum() / (x * x).sum() * x
        noise *= np.linalg.norm(x) / np.linalg.norm(noise)
        corners = rectangle(x / 2, x / 2, noise / 2)
        target = int(im.logits(data.x[i : i + 1])[0].argmax())
        exact = mean_integrated_gradients(im, x, corners, target)
        mean = exact_plane(im, corners).integrate()[target]
        change = attributor.walker.line(x, corners[0]).outputs[0, target] - mean
        row: dict[str, object] = {"image": i, "target": target}
        row["completeness_error"] = abs(exact.sum() - change)
        sides = corners[1] - corners[0], corners[3] - corners[0]
        places = rng.random((max(COUNTS), 2))
        points = [corners[0] + a * sides[0] + b * sides[1] for a, b in places]
        sampled = np.stack([attributor.exact(x, point, target) for point in points])
        for count in COUNTS:
            some = sampled[:count].mean(axis=0)
            row[f"error_percent_{count}"] = 100 * relative_error(some, exact)
        black = attributor.exact(x, np.zeros_like(x), target)
        row["error_percent_black"] = 100 * relative_error(black, exact)
        rows.append(row)
        drawn = drawn or {"image": x, "exact": exact, "black": black, "one": sampled[0]}
    table = pd.DataFrame(rows)
    title = "Integrated gradients averaged over a square of baselines"
    head = {"network": "digits_cnn", "images": s.images, "seed": s.seed}
    summary = table.drop(columns=["image", "target"]).agg(["mean", "max"]).reset_index(names="of")
    means = ExperimentTable("baselines", summary, title, head, note("baselines"))
    figure = ExperimentFigure("baselines", plot_baselines(drawn), drawn=drawn)
    return ExperimentResult([ExperimentTable("baselines_images", table), means], [figure])


def plot_baselines(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw attributions for an image: `exact`, from `black`, and from `one` baseline."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    titles = {"exact": "mean over the square, exact", "black": "one baseline: black"}
    titles["one"] = "one baseline of the square"
    for ax, (key, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        plot_over_image(drawn[key], drawn["image"], ax)
        ax.set_title(title, fontsize=9)
    exact = drawn["exact"].ravel()
    black, one = (np.corrcoef(drawn[key].ravel(), exact)[0, 1] for key in ("black", "one"))
    return put_finding(
        figure,
        f"Attributions from black correlate by {black:.2f} with the mean over a square of "
        f"baselines, from one of them by {one:.2f} (blue: for the class, red: against it)",
    )


BITS = (8, 6, 4)
_SAMPLES = 1_000  # points at which predictions are also compared


def compressions(s: settings.CompressedSettings) -> ExperimentResult:
    """Compare networks with lower-precision versions, on planes and lines between images."""
    rows = []
    cases = (("digits_cnn", "digits", "plane", s.planes), ("lenet5", "mnist", "line", s.lines))
    for name, dataset, where, count in cases:
        model = zoo.load(name) if dataset == "digits" else zoo.load(name, dataset)
        original = InstrumentedModel(model)
        data = datasets.load(dataset, "test")
        # Groups of `size` indices of images of different classes.
        size = 3 if where == "plane" else 2
        rng = as_generator(s.seed)
        classes = np.unique(data.y)
        drawn = (rng.permutation(classes)[:size] for _ in range(count))
        groups = [[rng.choice(np.flatnonzero(data.y == c)) for c in some] for some in drawn]
        for bits in BITS:
            compressed = InstrumentedModel(quantised(model, bits))
            for i, chosen in enumerate(track(groups, f"{name}, {bits} bits", count)):
                corners = np.asarray(data.x[chosen], np.float64)
                exact = disagreement(original, compressed, corners)
                shares = as_generator(s.seed + i).dirichlet(np.ones(len(corners)), _SAMPLES)
                x = np.tensordot(shares, corners, axes=1).astype(np.float32)
                answers = [im.logits(x).argmax(axis=1) for im in (original, compressed)]
                row = {"network": name, "where": where, "index": i, "bits": bits}
                row |= {"parts": exact.parts, "share_percent": 100 * exact.share}
                row["sampled_percent"] = 100 * float((answers[0] != answers[1]).mean())
                rows.append(row | {"largest_logit_difference": exact.difference})
    table = pd.DataFrame(rows)
    differ = table.share_percent > 0
    marks = table.assign(differ=differ, missed=differ & (table.sampled_percent == 0))
    summary = marks.groupby(["network", "where", "bits"], sort=False, as_index=False).agg(
        count=("index", "size"),
        parts_mean=("parts", "mean"),
        share_percent_mean=("share_percent", "mean"),
        share_percent_largest=("share_percent", "max"),
        with_differences=("differ", "sum"),
        none_seen=("missed", "sum"),
        largest_logit_difference=("largest_logit_difference", "max"),
    )
    title = "Quantised weights: the exact share on which the network answers differently"
    head = {"planes": s.planes, "lines": s.lines, "seed": s.seed}
    text = note("compressions", samples=_SAMPLES)
    means = ExperimentTable("compressions", summary, title, head, text)
    return ExperimentResult([ExperimentTable("compressions_all", table), means])


def quantised(model: keras.Model, bits: int) -> keras.Model:
    """Return a copy of a model with the weights of its kernels rounded to a number of bits."""
    copy = copy_model(model)
    for variable in copy.trainable_variables:
        if len(variable.shape) > 1:
            weights = keras.ops.convert_to_numpy(variable)
            step = np.abs(weights).max() / (2 ** (bits - 1) - 1)
            variable.assign(np.round(weights / step) * step)
    return copy
