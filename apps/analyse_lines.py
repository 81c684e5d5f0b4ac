"""Exact lines through networks: decision boundaries, attributions, linearity.

python apps/analyse_lines.py acas --networks FOLDER
python apps/analyse_lines.py attributions
python apps/analyse_lines.py linearity
python apps/analyse_lines.py train mnist pgd
"""

import dataclasses
import json
import time
from pathlib import Path
from types import ModuleType
from typing import Annotated

import keras
import numpy as np
import pandas as pd
import tensorflow
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import atomic_path, check_writable, data_folder
from nnslicer_tf._progress import track
from nnslicer_tf.exactline import (
    Attributor,
    LinearPartition,
    LineWalker,
    PathGradients,
    acas,
    linearity,
    plots,
    relative_error,
    robust_training,
)
from nnslicer_tf.exactline.gradients import RULES
from nnslicer_tf.report import (
    markdown_table,
    plot_ticks,
    provenance,
    save_figure,
    write_table,
)

app = typer.Typer(no_args_is_help=True)

EPSILON = {"mnist": 0.1, "cifar10": 2 / 255}
EPOCHS = {"normal": 10, "pgd": 10, "box": 20}


@app.callback()
def main() -> None:
    """Exact lines through networks: decision boundaries, attributions, linearity."""


Results = Annotated[Path | None, typer.Option(help="Folder of tables and figures.")]
Quick = Annotated[bool, typer.Option(help="A few lines; a minute or two.")]


@app.command("acas")
def analyse_acas(
    networks: Annotated[Path, typer.Option(help="Folder of .nnet files.")],
    speed: Annotated[float, typer.Option(help="Of both aircraft, ft/s.")] = 800.0,
    reach: Annotated[float, typer.Option(help="Largest distance, ft.")] = 20_000.0,
    quick: Quick = False,
    results: Results = None,
) -> None:
    """Decision boundaries of ACAS Xu networks: exact lines against samples (figure 2)."""
    folder = _results_folder(results, quick)
    paths = sorted(networks.glob("*.nnet"))
    if not paths:
        raise typer.BadParameter(f"there are no .nnet files in '{networks}'")
    lines = _acas_lines(reach, speed)
    rows = []
    for path in track(paths[:: 9 if quick else 1], "Networks"):
        nnet = acas.load_nnet(path)
        walker = LineWalker(nns.InstrumentedModel(acas.to_keras(nnet, "float64")))
        rows += [_acas_row(path.stem, name, nnet, walker, *ends) for name, ends in lines.items()]
    head = provenance(speed_ft_s=speed, reach_ft=reach)
    write_table(folder / "acas", "ACAS Xu: advisories along lines", pd.DataFrame(rows), head)
    grid = _acas_grid(12 if quick else 60, reach, speed)
    _draw_acas(paths[0], lines, grid, folder / "acas.png")


def _acas_lines(reach: float, speed: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return lines (ρ, θ, ψ, both speeds): an intruder ahead and head-on, and one around."""
    ahead = [[0, 0, -np.pi, speed, speed], [reach, 0, -np.pi, speed, speed]]
    near = reach / 4
    around = [[near, -np.pi, -np.pi, speed, speed], [near, np.pi, -np.pi, speed, speed]]
    return {"ahead": tuple(np.array(ahead)), "around": tuple(np.array(around))}


def _acas_row(
    network: str, line: str, nnet: acas.NNet, walker: LineWalker, q: np.ndarray, r: np.ndarray
) -> dict:
    """Compare the exact regions of a line with what 25 and 1,000 samples show."""
    partition = walker.line(q, r)
    regions = partition.classify(lowest=True)
    row = {"network": network, "line": line, "parts": len(partition), "regions": len(regions)}
    for samples in (25, 1_000):
        labels = _advisories(nnet, partition, np.linspace(0, 1, samples))
        row[f"regions_seen_by_{samples}_samples"] = 1 + int(np.count_nonzero(np.diff(labels)))
    row["narrowest_region_percent"] = 100 * float(np.diff(regions.ratios).min())
    return row


def _advisories(nnet: acas.NNet, line: LinearPartition, ratios: np.ndarray) -> np.ndarray:
    return nnet.evaluate(line.at(ratios)).argmin(axis=1)


def _draw_acas(
    network: Path,
    lines: dict[str, tuple[np.ndarray, np.ndarray]],
    grid: tuple[np.ndarray, np.ndarray],
    path: Path,
) -> None:
    """Draw single lines and a grid of them, exactly on the left, by samples on the right."""
    nnet = acas.load_nnet(network)
    walker = LineWalker(nns.InstrumentedModel(acas.to_keras(nnet, "float64")))
    plt = _pyplot()
    figure, axes = plt.subplots(3, 2, figsize=(9, 12), layout="constrained")
    for row, (name, ends) in zip(axes, lines.items(), strict=False):
        partition = walker.line(*ends)
        regions = partition.classify(lowest=True)
        plots.plot_regions(row[0], partition, regions, width=6, ticks=True)
        ratios = np.linspace(0, 1, 25)
        plots.plot_samples(row[1], partition.at(ratios), _advisories(nnet, partition, ratios))
        row[0].set_title(f"intruder {name}: exact, {len(partition)} parts")
        row[1].set_title(f"intruder {name}: 25 samples")
        if name == "ahead":
            for axis in row:
                axis.set_xlim(-ends[1][0] / 2, ends[1][0] / 2)
    for partition in walker.lines(*grid):
        plots.plot_regions(axes[2, 0], partition, partition.classify(lowest=True), width=0.9)
        ratios = np.linspace(0, 1, 13)
        labels = _advisories(nnet, partition, ratios)
        plots.plot_samples(axes[2, 1], partition.at(ratios), labels, size=3)
    axes[2, 0].set_title(f"{len(grid[0])} exact lines")
    axes[2, 1].set_title(f"{len(grid[0])} lines of 13 samples")
    for axis in axes.flat:
        axis.plot(0, 0, marker="^", color="black", markersize=6)
        axis.tick_params(labelsize=7)
        axis.locator_params(nbins=5)
    plots.legend(figure, acas.ADVISORIES)
    figure.supxlabel(f"ft to the right of the ownship ({network.stem})", fontsize=9)
    figure.supylabel("ft ahead of the ownship, which flies upwards", fontsize=9)
    save_figure(figure, path, dpi=120)


def _acas_grid(count: int, reach: float, speed: float) -> tuple[np.ndarray, np.ndarray]:
    """Return as many spokes as circles around the ownship."""
    angles = np.linspace(-np.pi, np.pi, count, endpoint=False)
    distances = np.linspace(0, reach, count + 1)[1:]
    rest = [-np.pi, speed, speed]
    spokes = [([0, angle, *rest], [reach, angle, *rest]) for angle in angles]
    circles = [([rho, -np.pi, *rest], [rho, np.pi, *rest]) for rho in distances]
    q, r = zip(*spokes, *circles, strict=True)
    return np.array(q), np.array(r)


@app.command()
def attributions(
    images: Annotated[int, typer.Option(min=1, help="Test images a network.")] = 100,
    most: Annotated[int, typer.Option(min=10, help="Samples at which to give up.")] = 1_000,
    quick: Quick = False,
    results: Results = None,
) -> None:
    """Exact integrated gradients against sums of samples (tables 1 and 2)."""
    folder = _results_folder(results, quick)
    tables = []
    for name, (dataset, model) in _networks().items():
        data = datasets.load(dataset, f"test[:{3 if quick else images}]")
        attributor = Attributor(nns.InstrumentedModel(model))
        predicted = np.argmax(model.predict(data.x, verbose=0), axis=1)
        rows = []
        for x, target in track(zip(data.x, predicted, strict=True), name, len(data)):
            line = attributor.walker.line(np.zeros(x.shape), x)
            rows.append(_attribution_row(attributor.along(line, int(target)), most))
        tables.append(pd.DataFrame(rows).assign(network=name, dataset=dataset))
    table = pd.concat(tables, ignore_index=True)
    head = provenance(baseline="black", target="the predicted class", most_samples=most)
    with atomic_path(folder / "attributions_images.csv") as path:
        table.to_csv(path, index=False)
    title = "Integrated gradients: exact and by samples (tables 1 and 2)"
    text = _paper_tables("table1", "table2")
    write_table(folder / "attributions", title, _attribution_summary(table), head, text)
    _draw_attributions(table, folder / "attributions.png")


def _networks() -> dict[str, tuple[str, keras.Model]]:
    """Return the trained networks at hand whose activations are ReLU: data set and model."""
    found = {"lenet5": ("mnist", zoo.load("lenet5", "mnist"))}
    for dataset in EPSILON:
        for method in robust_training.METHODS:
            if _weights(dataset, method).exists():
                found[f"convsmall-{dataset}-{method}"] = (dataset, _convsmall(dataset, method))
    return found


def _convsmall(dataset: str, method: str) -> keras.Model:
    shape = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}[dataset]
    model = robust_training.convsmall(shape)
    model.load_weights(_weights(dataset, method))
    return model


def _attribution_row(path: PathGradients, most: int) -> dict:
    exact = path.exact()
    outputs = path.partition.outputs[[0, -1], path.target]
    row = {"exact": len(path.partition)}
    row["completeness_error"] = abs(exact.sum() - (outputs[1] - outputs[0]))
    row["m_tilde"] = path.samples_for_completeness(most=most)
    if row["m_tilde"] is not None:
        row["error_at_m_tilde"] = relative_error(path.approximate(row["m_tilde"]), exact)
    return row | {rule: path.samples_within(rule, most=most) for rule in RULES}


def _attribution_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row a network: means over images, those beyond the most samples left out."""
    rows = []
    for network, group in table.groupby("network", sort=False):
        row = {"network": network, "images": len(group), "exact": group.exact.mean()}
        row["completeness_error_max"] = group.completeness_error.max()
        row["m_tilde"] = group.m_tilde.mean()
        row["error_percent_at_m_tilde"] = 100 * group.error_at_m_tilde.mean()
        within = group.dropna(subset=list(RULES))
        row |= {rule: within[rule].mean() for rule in RULES}
        row["saving_of_trapezoid_percent"] = 100 * (1 - within.trapezoid / within.left).mean()
        row["trapezoid_worse_than_left"] = int((within.trapezoid > within.left).sum())
        row["beyond_most"] = len(group) - len(within)
        rows.append(row)
    return pd.DataFrame(rows)


def _draw_attributions(table: pd.DataFrame, path: Path) -> None:
    plt = _pyplot()
    networks = list(table.network.unique())
    size = (10, 1.2 + 0.45 * len(networks) * len(RULES))
    figure, axes = plt.subplots(1, 2, figsize=size, layout="constrained")
    groups = {network: table[table.network == network] for network in networks}
    errors = {name: 100 * group.error_at_m_tilde.dropna() for name, group in groups.items()}
    plots.plot_boxes(axes[0], errors, "relative error at m̃ left samples, %")
    counts = {
        f"{name}, {rule}": group[rule].dropna() for name, group in groups.items() for rule in RULES
    }
    plots.plot_boxes(axes[1], counts, "samples to stay within 5 %")
    axes[1].set_xscale("log", subs=())
    largest = table[list(RULES)].max().max()
    ticks = [tick for tick in (5, 10, 20, 50, 100, 200, 500, 1_000) if tick <= 1.2 * largest]
    axes[1].set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    save_figure(figure, path, dpi=120)


@app.command("linearity")
def analyse_linearity(
    images: Annotated[int, typer.Option(min=1, help="Test images a data set.")] = 100,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    quick: Quick = False,
    results: Results = None,
) -> None:
    """Linearity towards adversarial neighbours, of normal and robust networks (tables 3, 4)."""
    folder, images = _results_folder(results, quick), 5 if quick else images
    tables = []
    for dataset, epsilon in EPSILON.items():
        data = datasets.load(dataset, f"test[:{images}]")
        for method in robust_training.METHODS:
            if _weights(dataset, method).exists():
                im = nns.InstrumentedModel(_convsmall(dataset, method))
                table = linearity(im, data.x, data.y, epsilon, rng=seed)
                tables.append(table.assign(dataset=dataset, training=method, image=table.index))
    table = pd.concat(tables, ignore_index=True)
    with atomic_path(folder / "linearity_images.csv") as path:
        table.to_csv(path, index=False)
    head = provenance(epsilon=EPSILON, images=images, seed=seed)
    title = "Density of FGSM lines / density of random lines (table 3), and gradient error"
    path, text = folder / "linearity_directions", _paper_tables("table3")
    write_table(path, title, _directions(table), head, text)
    title = "Density of the normal network / density of the other (table 4)"
    path, text = folder / "linearity_trainings", _paper_tables("table4")
    write_table(path, title, _trainings(table), head, text)
    _draw_linearity(table, folder / "linearity.png")
    _draw_ticks(seed, folder / "linearity_ticks.png")


def _directions(table: pd.DataFrame) -> pd.DataFrame:
    """Compare directions: for images that are classified rightly, all or those FGSM changes."""
    right = table[table.predicted == table.label]
    changed = right[right.fgsm_predicted != right.label]
    rows = []
    for which, chosen in (("right", right), ("right, changed by FGSM", changed)):
        for (dataset, method), group in chosen.groupby(["dataset", "training"], sort=False):
            row = {"dataset": dataset, "training": method, "images": which, "count": len(group)}
            row |= _quartiles(group.fgsm_density / group.random_density)
            for direction in ("fgsm", "random"):
                error = 100 * group[f"{direction}_gradient_error"].mean()
                row[f"{direction}_parts"] = group[f"{direction}_parts"].mean()
                row[f"{direction}_gradient_error_percent"] = error
            rows.append(row)
    return pd.DataFrame(rows)


def _trainings(table: pd.DataFrame) -> pd.DataFrame:
    """Compare every robust network with the normal one, image by image."""
    rows = []
    for dataset, group in table.groupby("dataset", sort=False):
        for direction in ("fgsm", "random"):
            column = f"{direction}_density"
            wide = group.pivot(index="image", columns="training", values=column)
            for other in wide.columns.drop("normal", errors="ignore"):
                ratio = wide["normal"] / wide[other]
                row = {"dataset": dataset, "direction": direction, "other": other}
                rows.append({**row, "count": len(ratio), **_quartiles(ratio)})
    return pd.DataFrame(rows)


def _quartiles(values: pd.Series) -> dict[str, float]:
    lower, median, upper = np.percentile(values, [25, 50, 75]) if len(values) else [np.nan] * 3
    return {"median": median, "quartile_25": lower, "quartile_75": upper}


def _draw_linearity(table: pd.DataFrame, path: Path) -> None:
    plt = _pyplot()
    groups = list(table.groupby(["dataset", "training"], sort=False))
    size = (9, 1 + 0.6 * len(groups))
    figure, axes = plt.subplots(1, 2, figsize=size, layout="constrained")
    ratios = {" ".join(key): g.fgsm_density / g.random_density for key, g in groups}
    plots.plot_boxes(axes[0], ratios, "FGSM density / random density")
    axes[0].axvline(1, color="#bdbdbd", zorder=0)
    errors = {" ".join(key): 100 * g.fgsm_gradient_error for key, g in groups}
    plots.plot_boxes(axes[1], errors, "gradient error along FGSM lines, %")
    save_figure(figure, path, dpi=120)


def _draw_ticks(seed: int, path: Path) -> None:
    """Draw the parts of the lines from one test image (figures 4 and 5)."""
    lines = {}
    for dataset, epsilon in EPSILON.items():
        data = datasets.load(dataset, "test[:1]")
        for method in robust_training.METHODS:
            if _weights(dataset, method).exists():
                im = nns.InstrumentedModel(_convsmall(dataset, method))
                walker = LineWalker(im)
                ends = {
                    "FGSM": nns.exactline.fgsm(im, data.x, data.y, epsilon)[0],
                    "random": nns.exactline.random_neighbours(data.x, epsilon, seed)[0],
                }
                for direction, end in ends.items():
                    lines[f"{dataset} {method}, {direction}"] = walker.line(data.x[0], end)
    _pyplot()
    save_figure(plot_ticks(lines).figure, path, dpi=120)


@app.command()
def train(
    dataset: Annotated[str, typer.Argument(help="mnist or cifar10")],
    method: Annotated[str, typer.Argument(help="normal, pgd or box")],
    seed: Annotated[int, typer.Option(min=0)] = 0,
    threads: Annotated[int, typer.Option(help="Default: all cores.", min=0)] = 0,
    quick: Annotated[bool, typer.Option(help="One epoch, 2,000 images; a trial.")] = False,
) -> None:
    """Train the small convolutional network that `linearity` and `attributions` analyse."""
    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    name = f"convsmall-{dataset}-{method}" + ("-quick" if quick else "")
    weights = check_writable(_weights(dataset, method, Path("runs") if quick else None))
    recipe = robust_training.RobustRecipe(method, EPSILON[dataset], 1 if quick else EPOCHS[method])
    data = datasets.load(dataset, "train[:2000]" if quick else "train[:90%]")
    held_out = datasets.load(dataset, "train[90%:]")
    keras.utils.set_random_seed(seed)
    network = robust_training.convsmall(data.x.shape[1:], data.classes)
    start = time.monotonic()
    losses = robust_training.train_robustly(network, data, recipe, rng=seed)
    minutes = (time.monotonic() - start) / 60
    zoo.save_weights(network, weights)
    test = datasets.load(dataset, "test")
    report = {
        **provenance(seed=seed),
        "network": name,
        "parameters": network.count_params(),
        "recipe": dataclasses.asdict(recipe),
        "train_images": len(data),
        "held_out_accuracy": zoo.accuracy(network, held_out),
        "test_images": len(test),
        "test_accuracy": zoo.accuracy(network, test),
        "minutes": round(minutes, 1),
        "losses": losses,
    }
    folder = Path("runs") if quick else data_folder() / "results" / "exactline" / "training"
    with atomic_path(folder / f"{name}.json") as path:
        path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"held out {report['held_out_accuracy']:.4f}, test {report['test_accuracy']:.4f}")


def _weights(dataset: str, method: str, folder: Path | None = None) -> Path:
    folder = folder or data_folder() / "weights" / "exactline"
    return folder / f"convsmall-{dataset}-{method}.weights.h5"


def _results_folder(results: Path | None, quick: bool) -> Path:
    """Return where tables go; a trial never replaces the results that are kept."""
    default = Path("runs/exactline") if quick else data_folder() / "results" / "exactline"
    return check_writable((results or default) / "trial").parent


def _paper_tables(*names: str) -> str:
    return "\n\n".join(map(_paper_table, names))


def _paper_table(name: str) -> str:
    """Return a table of the paper as Markdown, its citation above."""
    path = data_folder() / "paper" / "exactline" / f"{name}.csv"
    citation = path.read_text().splitlines()[0].lstrip("# ")
    table = pd.read_csv(path, comment="#", keep_default_na=False)
    return f"{citation}:\n\n{markdown_table(table)}"


def _pyplot() -> ModuleType:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


if __name__ == "__main__":
    app()
