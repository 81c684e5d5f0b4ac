"""Linearity of normal and robust networks: the paper's tables 3 and 4, figures 4 and 5."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets
from nnslicer_tf.exactline import LineWalker
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import plot_ticks
from reproduction.exactline.measures import fgsm, linearity, random_neighbours
from reproduction.exactline.networks import EPSILON, networks_of
from reproduction.exactline.settings import LinearitySettings
from reproduction.plots import plot_boxes, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, paper_text


def linearities(s: LinearitySettings) -> ExperimentResult:
    """Compare the densities of lines to adversarial and random neighbours (tables 3 and 4)."""
    networks = {key: InstrumentedModel(model) for key, model in networks_of(s.network).items()}
    tables = []
    for (dataset, method), im in networks.items():
        data = datasets.load(dataset, f"test[:{s.images}]")
        table = linearity(im, data.x, data.y, EPSILON[dataset], rng=s.seed)
        tables.append(table.assign(dataset=dataset, training=method, image=table.index))
    table = pd.concat(tables, ignore_index=True)
    head = {"network": s.network, "epsilon": EPSILON, "images": s.images, "seed": s.seed}
    title = "Density of FGSM lines / density of random lines (table 3), and gradient error"
    other = "Density of the normal network / density of the other (table 4)"
    text, other_text = paper_text("exactline/table3"), paper_text("exactline/table4")
    drawn = _drawn(networks, s.seed)
    return ExperimentResult(
        [
            ExperimentTable("linearity_images", table),
            ExperimentTable("linearity_directions", directions(table), title, head, text),
            ExperimentTable("linearity_trainings", trainings(table), other, head, other_text),
        ],
        [
            ExperimentFigure("linearity", plot(table), dpi=120),
            ExperimentFigure("linearity_ticks", plot_lines(drawn), dpi=120, drawn=drawn),
        ],
    )


def directions(table: pd.DataFrame) -> pd.DataFrame:
    """Compare directions for correctly classified images: all, and those that FGSM changes.

    Images that FGSM does not move are left out. Gradient errors are included for the directions
    for which the table has them.
    """
    right = table[table.predicted == table.label].dropna(subset=["fgsm_density"])
    changed = right[right.fgsm_predicted != right.label]
    rows = []
    for which, chosen in (("right", right), ("right, changed by FGSM", changed)):
        for (dataset, method), group in chosen.groupby(["dataset", "training"], sort=False):
            row = {"dataset": dataset, "training": method, "images": which, "count": len(group)}
            row |= _quartiles(group.fgsm_density / group.random_density)
            for direction in ("fgsm", "random"):
                row[f"{direction}_parts"] = group[f"{direction}_parts"].mean()
                if (error := f"{direction}_gradient_error") in group:
                    row[f"{error}_percent"] = 100 * group[error].mean()
            rows.append(row)
    return pd.DataFrame(rows)


def trainings(table: pd.DataFrame) -> pd.DataFrame:
    """Compare every robust network with the normal one, on images for which both have a line."""
    rows = []
    for dataset, group in table.groupby("dataset", sort=False):
        for direction in ("fgsm", "random"):
            column = f"{direction}_density"
            wide = group.pivot(index="image", columns="training", values=column)
            for other in wide.columns.drop("normal", errors="ignore"):
                ratio = (wide["normal"] / wide[other]).dropna()
                row = {"dataset": dataset, "direction": direction, "other": other}
                rows.append({**row, "count": len(ratio), **_quartiles(ratio)})
    return pd.DataFrame(rows)


def _quartiles(values: pd.Series) -> dict[str, float]:
    lower, median, upper = np.percentile(values, [25, 50, 75]) if len(values) else [np.nan] * 3
    return {"median": median, "quartile_25": lower, "quartile_75": upper}


def plot(table: pd.DataFrame) -> Figure:
    """Plot how much denser the affine parts are towards FGSM, and the gradient errors there."""
    groups = list(table.groupby(["dataset", "training"], sort=False))
    figure = Figure(figsize=(9, 1 + 0.6 * len(groups)), layout="constrained")
    axes = figure.subplots(1, 2)
    ratios = {" ".join(key): (g.fgsm_density / g.random_density).dropna() for key, g in groups}
    plot_boxes(axes[0], ratios, "FGSM density / random density")
    axes[0].axvline(1, color="#bdbdbd", zorder=0)
    errors = {" ".join(key): 100 * g.fgsm_gradient_error.dropna() for key, g in groups}
    plot_boxes(axes[1], errors, "gradient error along FGSM lines, %")
    medians = {name: values.median() for name, values in ratios.items()}
    low, high = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    put_finding(
        figure,
        f"Lines towards FGSM have {medians[low]:.1f} ({low}) to {medians[high]:.1f} ({high}) times "
        "as many affine parts as random ones (medians)",
    )
    return figure


def _drawn(networks: Mapping, seed: int) -> dict[str, np.ndarray]:
    """Return, for lines from one test image, the distances of the ends of their parts."""
    lines = {}
    for (dataset, method), im in networks.items():
        data, epsilon = datasets.load(dataset, "test[:1]"), EPSILON[dataset]
        walker = LineWalker(im)
        ends = {
            "FGSM": fgsm(im, data.x, data.y, epsilon)[0],
            "random": random_neighbours(data.x, epsilon, seed)[0],
        }
        for direction, end in ends.items():
            line = walker.line(data.x[0], end)
            lines[f"{dataset} {method}, {direction}"] = line.ratios * line.length
    return lines


@dataclass(frozen=True)
class _Line:
    """A line in the form that `plot_ticks` takes."""

    ratios: np.ndarray
    length: float

    def __len__(self) -> int:
        return len(self.ratios) - 1


def plot_lines(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the parts of the lines from one test image (figures 4 and 5)."""
    lines = {name: _Line(places / places[-1], float(places[-1])) for name, places in drawn.items()}
    figure = plot_ticks(lines).figure  # type: ignore[arg-type]
    counts = {name: len(line) for name, line in lines.items()}
    most, least = (choose(counts, key=counts.__getitem__) for choose in (max, min))
    put_finding(
        figure,  # type: ignore[arg-type]  # of new axes
        f"From one image, lines have {counts[least]} ({least}) to {counts[most]} ({most}) parts",
    )
    return figure  # type: ignore[return-value]
