"""ACAS Xu: decision boundaries along lines (the paper's figure 2), and exact decision maps."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nnslicer_tf._checks import counted
from nnslicer_tf._environment import track
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline import LinearPartition, LineWalker, PlaneWalker, acas
from nnslicer_tf.exactline.mesh import Mesh
from nnslicer_tf.exactline.planar_partition import PlanarClasses
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.downloads import sources
from reproduction.exactline.polygons import cut_by_lines
from reproduction.exactline.settings import AcasSettings, AdviceSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, compact, note

COLOURS = ("#d9d9d9", "#9ecae1", "#fdbe85", "#08519c", "#d94701")
"""The colour of each ACAS Xu class: clear, weak left, weak right, strong left, strong right."""


def boundaries(s: AcasSettings) -> ExperimentResult:
    """Compare exact lines with samples (figure 2)."""
    paths = network_files(s.networks)
    # Lines (ρ, θ, ψ, both speeds): an intruder ahead and head-on, and one around.
    ahead = [[0, 0, -np.pi, s.speed, s.speed], [s.reach, 0, -np.pi, s.speed, s.speed]]
    near = s.reach / 4
    around = [[near, -np.pi, -np.pi, s.speed, s.speed], [near, np.pi, -np.pi, s.speed, s.speed]]
    lines = {"ahead": np.array(ahead), "around": np.array(around)}
    rows = []
    for path in track(paths[:: s.every], "Networks"):
        nnet = acas.load_nnet(path)
        walker = LineWalker(InstrumentedModel(acas.to_keras(nnet, "float64")))
        for line, ends in lines.items():
            partition = walker.line(*ends)
            regions = partition.classify(lowest=True)
            row = {"network": path.stem, "line": line}
            row |= {"parts": len(partition), "regions": len(regions)}
            for samples in (25, 1_000):
                advice = _advisories(nnet, partition, np.linspace(0, 1, samples))
                changes = int(np.count_nonzero(np.diff(advice)))
                row[f"regions_seen_by_{samples}_samples"] = 1 + changes
            row["narrowest_region_percent"] = 100 * float(np.diff(regions.ratios).min())
            rows.append(row)
    head = {"speed_ft_s": s.speed, "reach_ft": s.reach}
    title = "ACAS Xu: advisories along lines"
    # As many spokes as circles around the ownship.
    angles = np.linspace(-np.pi, np.pi, s.grid, endpoint=False)
    distances = np.linspace(0, s.reach, s.grid + 1)[1:]
    rest = [-np.pi, s.speed, s.speed]
    spokes = [([0, angle, *rest], [s.reach, angle, *rest]) for angle in angles]
    circles = [([rho, -np.pi, *rest], [rho, np.pi, *rest]) for rho in distances]
    q, r = zip(*spokes, *circles, strict=True)
    # Single lines and the grid around the ownship, exact and sampled.
    nnet, drawn = acas.load_nnet(paths[0]), {"network": np.array(paths[0].stem)}
    walker = LineWalker(InstrumentedModel(acas.to_keras(nnet, "float64")))
    for line, ends in lines.items():
        partition = walker.line(*ends)
        drawn |= _curves_and_samples(line, nnet, [partition], 25)
        drawn[f"{line}/ticks"] = polar(partition.at(partition.ratios))
    drawn |= _curves_and_samples("grid", nnet, list(walker.lines(np.array(q), np.array(r))), 13)
    figure = ExperimentFigure("acas", plot_lines(drawn), 120, drawn=drawn)
    return ExperimentResult([ExperimentTable("acas", pd.DataFrame(rows), title, head)], [figure])


def network_files(folder: Path) -> list[Path]:
    """Return the .nnet files of a folder."""
    paths = sorted(folder.glob("*.nnet"))
    if not paths:
        raise InvalidArgumentError(
            f"There are no .nnet files in '{folder}'. {sources()['acas_xu'].how_to_get()}"
        )
    return paths


def evaluate(nnet: acas.NNet, x: np.ndarray) -> np.ndarray:
    """Return the outputs `(…, outputs)` float64 for inputs in physical units, which are clipped."""
    clipped = np.clip(np.asarray(x, np.float64), nnet.minima, nnet.maxima)
    values = (clipped - nnet.means[:-1]) / nnet.ranges[:-1]
    for weights, biases in zip(nnet.weights[:-1], nnet.biases[:-1], strict=True):
        values = np.maximum(values @ weights.T + biases, 0)
    outputs = values @ nnet.weights[-1].T + nnet.biases[-1]
    return outputs * nnet.ranges[-1] + nnet.means[-1]


def _advisories(nnet: acas.NNet, line: LinearPartition, ratios: np.ndarray) -> np.ndarray:
    return evaluate(nnet, line.at(ratios)).argmin(axis=1)


def _curves_and_samples(
    name: str, nnet: acas.NNet, partitions: Sequence[LinearPartition], count: int
) -> dict[str, np.ndarray]:
    """Return lines as a sequence of curves of one class each, and samples with their classes."""
    curves: list[np.ndarray] = []
    labels: list[int] = []
    for partition in partitions:
        regions = partition.classify(lowest=True)
        labels += list(regions.labels)
        for start, stop in pairwise(regions.ratios):
            steps = max(2, int(np.ceil(100 * (stop - start))))
            curves.append(polar(partition.at(np.linspace(start, stop, steps))))
    ratios = np.linspace(0, 1, count)
    points = np.concatenate([polar(partition.at(ratios)) for partition in partitions])
    return {
        f"{name}/ends": np.cumsum([len(curve) for curve in curves]),
        f"{name}/curves": np.concatenate(curves).astype(np.float32),
        f"{name}/labels": np.array(labels, np.uint8),
        f"{name}/points": points.astype(np.float32),
        f"{name}/sampled": np.concatenate([_advisories(nnet, one, ratios) for one in partitions]),
    }


def plot_lines(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw single lines and a grid of them, exact on the left, sampled on the right."""
    figure = Figure(figsize=(9, 12), layout="constrained")
    axes = figure.subplots(3, 2)
    found = []
    for row, name in zip(axes, ("ahead", "around", "grid"), strict=True):
        single = name != "grid"
        curves = np.split(drawn[f"{name}/curves"], drawn[f"{name}/ends"][:-1])
        colours = [COLOURS[label] for label in drawn[f"{name}/labels"]]
        width, size = (6.0, 14.0) if single else (0.9, 3.0)
        options = {"colors": colours, "linewidths": width, "capstyle": "butt"}
        row[0].add_collection(LineCollection(curves, **options))
        row[0].autoscale_view()
        colours = [COLOURS[label] for label in drawn[f"{name}/sampled"]]
        row[1].scatter(*drawn[f"{name}/points"].T, c=colours, s=size, linewidths=0)
        for axis in row:
            axis.set_aspect("equal")
        if single:
            x, y = drawn[f"{name}/ticks"].T
            row[0].scatter(x, y, s=0.6, color="black", zorder=3)
            row[0].set_title(f"intruder {name}: exact, {len(x) - 1} parts")
            row[1].set_title(f"intruder {name}: {len(drawn[f'{name}/points'])} samples")
            labels = (drawn[f"{name}/{of}"] for of in ("labels", "sampled"))
            changes = [np.count_nonzero(np.diff(one)) for one in labels]
            found.append(f"{changes[0]} exactly and {changes[1]} by samples {name}")
        if name == "ahead":
            reach = np.linalg.norm(drawn[f"{name}/ticks"], axis=1).max()
            for axis in row:
                axis.set_xlim(-reach / 2, reach / 2)
    lines = len(drawn["grid/points"]) // 13
    axes[2, 0].set_title(f"{lines} exact lines")
    axes[2, 1].set_title(f"{lines} lines of 13 samples")
    for axis in axes.flat:
        axis.plot(0, 0, marker="^", color="black", markersize=6)
        axis.tick_params(labelsize=8)
        axis.locator_params(nbins=5)
    legend(figure, acas.ADVISORIES)
    for axis in axes[2]:
        axis.set_xlabel("ft to the right of the ownship", fontsize=9)
    figure.supylabel("ft ahead of the ownship, which flies upwards", fontsize=9)
    return put_finding(figure, f"{drawn['network']}: changes of advice, {', '.join(found)}")


def polar(points: np.ndarray) -> np.ndarray:
    """Return plane coordinates `(n, 2)` of points whose first columns are ρ and θ.

    The ownship is at the origin and flies upwards; θ > 0 is to its left.
    """
    rho, theta = points[:, 0], points[:, 1]
    return np.stack([-rho * np.sin(theta), rho * np.cos(theta)], axis=1)


def legend(figure: Figure, names: Sequence[str]) -> None:
    """Write the legend of the classes' colours below a figure."""
    named = zip(COLOURS, names, strict=False)
    handles = [Line2D([], [], color=colour, linewidth=4, label=name) for colour, name in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(names), frameon=False)


REACH = float(np.hypot(10_000, 6_000))
"""Largest distance of the intruder in ft: that of SyReNN's script `acas_planes.py`."""

_HEADINGS = {"head-on": -180, "perpendicular": -90, "opposite": 0, "-perpendicular": 90}
SCENARIOS = {
    f"{name}, {pace}": (np.radians(heading), speed)
    for name, heading in _HEADINGS.items()
    for pace, speed in (("slow", 150.0), ("fast", 500.0))
}
"""Name → the intruder's heading in radians, and the speed of both aircraft in ft/s."""


_SHOWN = ("head-on, slow", "head-on, fast", "perpendicular, fast", "opposite, fast")


def scenario(name: str) -> np.ndarray:
    """Return the rectangle of all positions of the intruder in a scenario, `(4, 5)`.

    The inputs are distance ρ in ft, 0 to `REACH`, angle θ, all around, heading ψ, and both speeds.
    """
    heading, speed = SCENARIOS[name]
    rest = [heading, speed, speed]
    ends = ((0, -np.pi), (REACH, -np.pi), (REACH, np.pi), (0, np.pi))
    return np.array([[rho, theta, *rest] for rho, theta in ends])


def advice_maps(s: AdviceSettings) -> ExperimentResult:
    """Compare exact decision maps with dense samples."""
    paths, rows = network_files(s.networks), []
    for path in track(paths[:: s.every], "Networks"):
        walker = _walker(acas.load_nnet(path))
        for name in ("head-on, slow", "head-on, fast"):
            partition = walker.plane(scenario(name))
            classes = partition.classify(lowest=True)
            areas = _physical(classes.mesh)
            row: dict[str, object] = {"regions": len(partition), "pieces": len(classes)}
            for label, advice in enumerate(acas.ADVISORIES):
                row[f"{advice}_percent"] = 100 * areas[classes.labels == label].sum() / areas.sum()
            for count in s.samples:
                missed, shown = _missed(classes, count)
                row[f"missed_percent_{count}"] = 100 * missed
                row[f"classes_missed_{count}"] = len(set(classes.labels.tolist()) - shown)
            rows.append({"network": path.stem, "scenario": name, **row})
    table = pd.DataFrame(rows)
    # The means and the extremes over networks, for each scenario.
    summary = []
    for name, group in table.groupby("scenario", sort=False):
        row = {"scenario": name, "networks": len(group)}
        row |= {"regions_mean": group.regions.mean(), "regions_largest": group.regions.max()}
        for column in group.columns[group.columns.str.contains("missed")]:
            row[f"{column}_mean"] = group[column].mean()
            row[f"{column}_largest"] = group[column].max()
        summary.append(row)
    head = {"reach_ft": REACH, "samples_per_side": list(s.samples)}
    title = "ACAS Xu: exact decision maps, and what samples miss"
    drawn = _drawn(paths[0], min(s.samples))
    summary, text = pd.DataFrame(summary), note("advice_maps")
    means = ExperimentTable("acas_planes_summary", summary, title, head, text)
    figure = ExperimentFigure("acas_planes", plot(drawn), 120, drawn=drawn)
    return ExperimentResult([ExperimentTable("acas_planes", table), means], [figure])


def _walker(nnet: acas.NNet) -> PlaneWalker:
    return PlaneWalker(InstrumentedModel(acas.to_keras(nnet, "float64")))


def _physical(mesh: Mesh) -> np.ndarray:
    """Return the physical areas of faces in (ρ, θ), which are the integrals of ρ."""
    return mesh.integrals(mesh.places[:, :1])[:, 0]


def _missed(classes: PlanarClasses, count: int) -> tuple[float, set[int]]:
    """Return the share of the area whose advice its sample misses, and all sampled advice."""
    size = classes.corners.max(axis=0)
    lines = (np.arange(1, count) / count)[:, None] * size
    mesh = classes.mesh
    for axis in (0, 1):
        mesh = cut_by_lines(mesh, mesh.places[:, [axis]] - lines[:, axis])
    sampled = classes.label_at(_middles(classes.corners, count)[0]).reshape(count, count)
    middles = mesh.middles()
    cell = np.clip((middles / size * count).astype(int), 0, count - 1)
    areas = _physical(mesh)
    differ = sampled[cell[:, 0], cell[:, 1]] != classes.label_at(middles)
    return float(areas[differ].sum() / areas.sum()), set(sampled.ravel().tolist())


def _drawn(path: Path, samples: int) -> dict[str, np.ndarray]:
    """Return the exact map of four scenarios, and the advice at samples of a grid."""
    walker, drawn = _walker(acas.load_nnet(path)), {"network": np.array(path.stem)}
    for title in _SHOWN:
        partition = walker.plane(scenario(title))
        classes = partition.classify(lowest=True)
        middles, _ = _middles(classes.corners, samples)
        for field in ("corners", "start", "loop"):
            drawn[f"{title}/{field}"] = compact(getattr(classes, field))
        shares = classes.vertices / classes.corners.max(axis=0)  # a pixel is 100 steps wide
        drawn[f"{title}/vertices"] = np.rint(65_535 * shares).astype(np.uint16)
        drawn[f"{title}/labels"] = classes.labels.astype(np.uint8)
        drawn[f"{title}/sampled"] = classes.label_at(middles).astype(np.uint8)
        drawn[f"{title}/regions"] = np.array(len(partition))
    return drawn


def plot(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the map of each scenario, the exact one above the sampled one."""
    figure = Figure(figsize=(8.8, 5.6), layout="constrained")
    axes = figure.subplots(2, len(_SHOWN), sharex=True, sharey=True)
    counts = []
    for (above, below), title in zip(axes.T, _SHOWN, strict=True):
        part = {key.removeprefix(f"{title}/"): value for key, value in drawn.items()}
        vertices = part["vertices"] / 65_535 * part["corners"].max(axis=0)
        _draw_polygons(above, np.split(vertices[part["loop"]], part["start"][1:-1]), part["labels"])
        counts.append(int(part["regions"]))
        above.set_title(f"{title}:\nexact, {counted(counts[-1], 'region')}", fontsize=9)
        samples = math.isqrt(len(part["sampled"]))
        middles, size = _middles(part["corners"], samples)
        square = (np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) - 0.5) * size
        _draw_polygons(below, list(middles[:, None] + square), part["sampled"])
        below.set_title(f"{samples} × {samples} samples", fontsize=9)
    legend(figure, acas.ADVISORIES)
    for axis in axes[1]:
        axis.set_xlabel("ft to the right", fontsize=9)
    figure.supylabel("ft ahead of the ownship, which flies upwards", fontsize=9)
    return put_finding(
        figure,
        f"{drawn['network']}: {min(counts):,} to {max(counts):,} regions make up the exact advice, "
        "of which samples show blocks",
    )


def _middles(corners: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the centres of the cells of a grid in (ρ, θ), and the size of a cell."""
    size = corners.max(axis=0) / count
    first = np.stack(np.meshgrid(np.arange(count), np.arange(count), indexing="ij"), axis=-1)
    return (first.reshape(-1, 2) + 0.5) * size, size


def _draw_polygons(axes: Axes, polygons: list[np.ndarray], labels: np.ndarray) -> None:
    """Draw polygons of the (ρ, θ) plane around the ownship, coloured by advice."""
    # Edges become curves: points at least every 0.05 rad, and ends only where an edge begins.
    curved = []
    for polygon in polygons:
        pieces = []
        for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
            steps = max(1, int(np.ceil(abs(b[1] - a[1]) / 0.05)))
            pieces.append(a + np.arange(steps)[:, None] / steps * (b - a))
        curved.append(polar(np.concatenate(pieces) - (0, np.pi)))
    colours = [COLOURS[label] for label in labels]
    options = {"facecolors": colours, "edgecolors": colours, "linewidths": 0.2}
    axes.add_collection(PolyCollection(curved, **options))
    axes.plot(0, 0, marker="^", color="black", markersize=5)
    axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal")
    axes.tick_params(labelsize=8)
    axes.locator_params(nbins=3)
