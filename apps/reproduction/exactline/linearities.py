"""Linearity of normal and robust networks: the paper's tables 3 and 4, figures 4 and 5.

Where the paper is silent, `linearities_by_program` follows its program (95616ARG/SyReNN): lines
start at correctly classified images. FGSM changes a pixel by 3 % of its own value, in whole grey
levels, towards the class after the label, so that black pixels stay black; four random neighbours
change by as much, with random signs. Errors are means of relative errors of single components.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets
from nnslicer_tf._environment import track
from nnslicer_tf.exactline import Attributor, LineWalker
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.exactline import measures
from reproduction.exactline.networks import EPSILON, networks_of
from reproduction.exactline.settings import LinearitySettings, ProgramSettings
from reproduction.plots import plot_boxes, put_finding
from reproduction.result import (
    ExperimentFigure,
    ExperimentResult,
    ExperimentTable,
    note,
    paper_text,
)


def linearities(s: LinearitySettings) -> ExperimentResult:
    """Compare the densities of lines to adversarial and random neighbours (tables 3 and 4)."""
    tables = []
    drawn = {}  # the distances of the ends of the parts of lines from the first test image
    for (dataset, method), model in networks_of(s.network).items():
        im, epsilon = InstrumentedModel(model), EPSILON[dataset]
        data = datasets.load(dataset, f"test[:{s.images}]")
        table = measures.linearity(im, data.x, data.y, epsilon, rng=s.seed)
        tables.append(table.assign(dataset=dataset, training=method, image=table.index))
        x = data.x[:1]
        neighbours = {"FGSM": measures.fgsm(im, x, data.y[:1], epsilon)}
        neighbours["random"] = measures.random_neighbours(x, epsilon, s.seed)
        for direction, end in neighbours.items():
            line = LineWalker(im).line(x[0], end[0])
            drawn[f"{dataset} {method}, {direction}"] = line.ratios * line.length
    table = pd.concat(tables, ignore_index=True)
    head = {"network": s.network, "epsilon": EPSILON, "images": s.images, "seed": s.seed}
    title = "Density of FGSM lines / density of random lines (table 3), and gradient error"
    other = "Density of the normal network / density of the other (table 4)"
    text, other_text = paper_text("exactline/table3"), paper_text("exactline/table4")
    tables = [
        ExperimentTable("linearity_images", table),
        ExperimentTable("linearity_directions", directions(table), title, head, text),
        ExperimentTable("linearity_trainings", trainings(table), other, head, other_text),
    ]
    ticks = ExperimentFigure("linearity_ticks", plot_lines(drawn), dpi=120, drawn=drawn)
    return ExperimentResult(tables, [ExperimentFigure("linearity", plot(table), dpi=120), ticks])


def directions(table: pd.DataFrame) -> pd.DataFrame:
    """Compare directions for correctly classified images that FGSM moves, or even changes."""
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
    return put_finding(
        figure,
        f"Lines towards FGSM have {medians[low]:.1f} ({low}) to {medians[high]:.1f} ({high}) times "
        "as many affine parts as random ones (medians)",
    )


def plot_lines(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the parts of the lines from one test image (figures 4 and 5).

    `drawn` has the distances from the image to the ends of the parts, starting at 0.
    """
    counts = {name: len(places) - 1 for name, places in drawn.items()}
    figure = Figure((9, 0.7 + 0.4 * len(drawn)), layout="constrained")
    ax, rows = figure.subplots(), -np.arange(len(drawn))
    ax.hlines(rows, 0, [places[-1] for places in drawn.values()], color="#bdbdbd", linewidth=1)
    ax.eventplot(
        list(drawn.values()), lineoffsets=rows, linelengths=0.6, colors="#08519c", linewidths=0.6
    )
    ax.set_yticks(rows, [f"{name}: {count} parts" for name, count in counts.items()])
    ax.set_xlabel("distance from the image (Euclidean)")
    ax.spines[["top", "right", "left"]].set_visible(False)
    most, least = (choose(counts, key=counts.__getitem__) for choose in (max, min))
    finding = f"From one image, lines have {counts[least]} ({least})"
    finding += f" to {counts[most]} ({most}) parts"
    return put_finding(figure, finding)


_SHARE = 0.03  # of a pixel's own value
_RANDOM = 4  # random neighbours of an image


def linearities_by_program(s: ProgramSettings) -> ExperimentResult:
    """Compare lines to FGSM and random neighbours by the program's procedure."""
    tables = []
    for (dataset, method), model in networks_of(s.network).items():
        data = datasets.load(dataset, f"test[:{s.images}]")
        table = lines(InstrumentedModel(model), data.x, data.y, s.seed, f"{dataset} {method}")
        tables.append(table.assign(dataset=dataset, training=method))
    table = pd.concat(tables, ignore_index=True)
    head = {"network": s.network, "images": f"the first {s.images:,} test images", "seed": s.seed}
    first = table.drop_duplicates(["dataset", "training", "image"])
    # The mean and the median error of each network, by either measure.
    rows = []
    for (dataset, method), group in first.groupby(["dataset", "training"], sort=False):
        row = {"dataset": dataset, "training": method, "images": len(group)}
        for label, column in (("norm", "gradient"), ("components", "component")):
            errors = 100 * group[f"fgsm_{column}_error"]
            row |= {f"by {label}": errors.mean(), f"by {label}, median": errors.median()}
        rows.append(row)
    by_direction = "density of FGSM lines / density of random lines"
    by_training = "density of the normal network / density of the other"
    tables = []
    for name, frame, what, text in (
        ("directions", directions(table), by_direction, paper_text("exactline/table3")),
        ("trainings", trainings(first), by_training, paper_text("exactline/table4")),
        ("gradients", pd.DataFrame(rows), "relative change of the gradient", note("gradients")),
    ):
        title = f"By the program's procedure: {what}"
        tables.append(ExperimentTable(f"program_{name}", frame, title, head, text))
    return ExperimentResult(tables)


def lines(
    im: InstrumentedModel, x: np.ndarray, y: np.ndarray, seed: int, name: str
) -> pd.DataFrame:
    """Return a row for each correctly classified image, in [0, 1], and each random neighbour."""
    attributor = Attributor(im)
    predicted = im.logits(x).argmax(axis=1)
    rows = []
    for i in track(np.flatnonzero(predicted == y), name):
        target = (int(y[i]) + 1) % 10
        signs = np.sign(attributor.gradients(x[i : i + 1], target)[0])
        path = attributor.path(end := moved(x[i], signs), x[i], target)
        row = {"image": i, "label": y[i], "predicted": predicted[i]}
        row["fgsm_predicted"] = im.logits(end[None]).argmax()
        row |= {"fgsm_parts": len(path.partition), "fgsm_density": measures.density(path.partition)}
        row["fgsm_gradient_error"] = measures.relative_change(path)
        row["fgsm_component_error"] = measures.relative_change(path, by="components")
        rng = np.random.default_rng([seed, int(i)])  # the same neighbours for all networks
        for _ in range(_RANDOM):
            line = attributor.walker.line(x[i], moved(x[i], rng.choice([-1.0, 1.0], x[i].shape)))
            randomly = {"random_parts": len(line), "random_density": measures.density(line)}
            rows.append(row | randomly)
    return pd.DataFrame(rows)


def moved(image: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return an image with pixels changed by 3 % of their values, in whole grey levels."""
    levels = np.round(255 * np.float64(image))
    return np.clip(levels + np.floor(_SHARE * levels) * signs, 0, 255) / 255
