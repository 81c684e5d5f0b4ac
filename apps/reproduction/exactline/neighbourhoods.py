"""Planes through images and their adversarial and random neighbours."""

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets
from nnslicer_tf._checks import counted
from nnslicer_tf._environment import track
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.exactline import PlaneWalker
from nnslicer_tf.exactline.planar_partition import PlanarClasses
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import plot_plane
from reproduction.exactline.measures import fgsm, random_neighbours
from reproduction.exactline.networks import EPSILON, networks_of
from reproduction.exactline.settings import NeighbourhoodSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, compact


def neighbourhoods(s: NeighbourhoodSettings) -> ExperimentResult:
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
            row["other_percent"] = 100 * (1 - partition.area(int(data.y[i])))
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
    drawn = _drawn(networks, table, s.seed)
    return ExperimentResult(
        [
            ExperimentTable("neighbourhoods_images", table),
            ExperimentTable("neighbourhoods", summary, title, head, _TEXT),
        ],
        [ExperimentFigure("neighbourhoods", plot(drawn), drawn=drawn)],
    )


_TEXT = (
    "Only images that the network classifies correctly. `other_percent` is the exact share of the "
    "triangle where another class wins, `margin` the smallest difference between the label's logit "
    "and the largest other one anywhere on it."
)


def _triangles(im: InstrumentedModel, data: Dataset, dataset: str, seed: int) -> np.ndarray:
    """Return images with their FGSM and random neighbours, `(images, 3, *input shape)`."""
    x, epsilon = data.x, EPSILON[dataset]
    neighbours = fgsm(im, x, data.y, epsilon), random_neighbours(x, epsilon, seed)
    return np.stack([np.asarray(x, np.float64), *neighbours], axis=1)


def _drawn(networks: dict, table: pd.DataFrame, seed: int) -> dict[str, np.ndarray]:
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


def plot(drawn: Mapping[str, np.ndarray]) -> Figure:
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
        plot_plane(PlanarClasses(**attributes), regions=True, ax=axes[row, column])
        count = int(drawn[f"{name}/regions"])
        axes[row, column].set_title(f"{name}: {counted(count, 'region')}", fontsize=9)
        axes[row, column].get_legend().set(loc="upper right", bbox_to_anchor=(1, 1))
        axes[row, column].set(xlabel="", ylabel="")
        axes[row, column].tick_params(labelsize=8)
    figure.supxlabel("from the image to FGSM (Euclidean)", fontsize=9)
    figure.supylabel("towards the random neighbour", fontsize=9)
    counts = {name: int(drawn[f"{name}/regions"]) for name in names}
    most, least = (choose(counts, key=counts.__getitem__) for choose in (max, min))
    put_finding(
        figure,
        f"From {counted(counts[least], 'region')} ({least}) to {counts[most]:,} "
        f"({most}) around one image",
    )
    return figure
