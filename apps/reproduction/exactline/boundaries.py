"""Decision boundaries of ACAS Xu networks, exact and sampled: the paper's figure 2."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nnslicer_tf._environment import track
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline import LinearPartition, LineWalker, acas
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.exactline.settings import AcasSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable

COLOURS = ("#d9d9d9", "#9ecae1", "#fdbe85", "#08519c", "#d94701")
"""The colour of each ACAS Xu class: clear, weak left, weak right, strong left, strong right."""

Ends = tuple[np.ndarray, np.ndarray]


def boundaries(s: AcasSettings) -> ExperimentResult:
    """Compare exact lines with samples (figure 2)."""
    paths = network_files(s.networks)
    # Lines (ρ, θ, ψ, both speeds): an intruder ahead and head-on, and one around.
    ahead = [[0, 0, -np.pi, s.speed, s.speed], [s.reach, 0, -np.pi, s.speed, s.speed]]
    near = s.reach / 4
    around = [[near, -np.pi, -np.pi, s.speed, s.speed], [near, np.pi, -np.pi, s.speed, s.speed]]
    lines = {"ahead": tuple(np.array(ahead)), "around": tuple(np.array(around))}
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
    grid = np.array(q), np.array(r)
    drawn = _drawn(acas.load_nnet(paths[0]), paths[0].stem, lines, grid)
    return ExperimentResult(
        [ExperimentTable("acas", pd.DataFrame(rows), title, head)],
        [ExperimentFigure("acas", plot(drawn), 120, drawn=drawn)],
    )


def network_files(folder: Path) -> list[Path]:
    """Return the .nnet files of a folder."""
    paths = sorted(folder.glob("*.nnet"))
    if not paths:
        raise InvalidArgumentError(f"There are no .nnet files in '{folder}'.")
    return paths


def _advisories(nnet: acas.NNet, line: LinearPartition, ratios: np.ndarray) -> np.ndarray:
    return nnet.evaluate(line.at(ratios)).argmin(axis=1)


def _drawn(nnet: acas.NNet, name: str, lines: dict[str, Ends], grid: Ends) -> dict[str, np.ndarray]:
    """Return single lines and a grid of them, exact and sampled, around the ownship."""
    walker = LineWalker(InstrumentedModel(acas.to_keras(nnet, "float64")))
    drawn = {"network": np.array(name)}
    for line, ends in lines.items():
        partition = walker.line(*ends)
        drawn |= _curves_and_samples(line, nnet, [partition], 25)
        drawn[f"{line}/ticks"] = polar(partition.points)
    return drawn | _curves_and_samples("grid", nnet, list(walker.lines(*grid)), 13)


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


def plot(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw single lines and a grid of them, exact on the left, sampled on the right."""
    figure = Figure(figsize=(9, 12), layout="constrained")
    axes = figure.subplots(3, 2)
    found = []
    for row, name in zip(axes, ("ahead", "around", "grid"), strict=True):
        single = name != "grid"
        curves = np.split(drawn[f"{name}/curves"], drawn[f"{name}/ends"][:-1])
        colours = [COLOURS[label] for label in drawn[f"{name}/labels"]]
        width, size = (6.0, 14.0) if single else (0.9, 3.0)
        row[0].add_collection(
            LineCollection(curves, colors=colours, linewidths=width, capstyle="butt")
        )
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
            changes = [
                np.count_nonzero(np.diff(drawn[f"{name}/{of}"])) for of in ("labels", "sampled")
            ]
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
    put_finding(figure, f"{drawn['network']}: changes of advice, {', '.join(found)}")
    return figure


def polar(points: np.ndarray) -> np.ndarray:
    """Return plane coordinates `(n, 2)` of points whose first columns are ρ and θ.

    The ownship is at the origin and flies upwards; θ > 0 is to its left.
    """
    rho, theta = points[:, 0], points[:, 1]
    return np.stack([-rho * np.sin(theta), rho * np.cos(theta)], axis=1)


def legend(figure: Figure, names: Sequence[str]) -> None:
    """Write the legend of the classes' colours below a figure."""
    handles = [
        Line2D([], [], color=colour, linewidth=4, label=name)
        for colour, name in zip(COLOURS, names, strict=False)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(names), frameon=False)
