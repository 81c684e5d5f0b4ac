"""Decision boundaries of ACAS Xu networks, exactly and by samples: the paper's figure 2."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nnslicer_tf._progress import track
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline import LinearPartition, LineWalker, Regions, acas
from nnslicer_tf.experiments.exactline.settings import AcasSettings
from nnslicer_tf.experiments.result import ExperimentFigure, ExperimentResult, ExperimentTable
from nnslicer_tf.instrument import InstrumentedModel

COLOURS = ("#d9d9d9", "#9ecae1", "#fdbe85", "#08519c", "#d94701")
"""A colour for each class of ACAS Xu: clear, weak left, weak right, strong left, strong right."""

Ends = tuple[np.ndarray, np.ndarray]


def boundaries(s: AcasSettings) -> ExperimentResult:
    """Compare exact lines with samples (figure 2)."""
    paths = sorted(s.networks.glob("*.nnet"))
    if not paths:
        raise InvalidArgumentError(f"There are no .nnet files in '{s.networks}'.")
    lines = _lines(s.reach, s.speed)
    rows = []
    for path in track(paths[:: s.every], "Networks"):
        nnet = acas.load_nnet(path)
        walker = _walker(nnet)
        rows += [_row(path.stem, name, nnet, walker, *ends) for name, ends in lines.items()]
    head = {"speed_ft_s": s.speed, "reach_ft": s.reach}
    title = "ACAS Xu: advisories along lines"
    figure = _plot(acas.load_nnet(paths[0]), paths[0].stem, lines, _grid(s.grid, s.reach, s.speed))
    return ExperimentResult(
        [ExperimentTable("acas", pd.DataFrame(rows), title, head)],
        [ExperimentFigure("acas", figure, dpi=120)],
    )


def _walker(nnet: acas.NNet) -> LineWalker:
    return LineWalker(InstrumentedModel(acas.to_keras(nnet, "float64")))


def _lines(reach: float, speed: float) -> dict[str, Ends]:
    """Return lines (ρ, θ, ψ, both speeds): an intruder ahead and head-on, and one around."""
    ahead = [[0, 0, -np.pi, speed, speed], [reach, 0, -np.pi, speed, speed]]
    near = reach / 4
    around = [[near, -np.pi, -np.pi, speed, speed], [near, np.pi, -np.pi, speed, speed]]
    return {"ahead": tuple(np.array(ahead)), "around": tuple(np.array(around))}


def _grid(count: int, reach: float, speed: float) -> Ends:
    """Return as many spokes as circles around the ownship."""
    angles = np.linspace(-np.pi, np.pi, count, endpoint=False)
    distances = np.linspace(0, reach, count + 1)[1:]
    rest = [-np.pi, speed, speed]
    spokes = [([0, angle, *rest], [reach, angle, *rest]) for angle in angles]
    circles = [([rho, -np.pi, *rest], [rho, np.pi, *rest]) for rho in distances]
    q, r = zip(*spokes, *circles, strict=True)
    return np.array(q), np.array(r)


def _row(
    network: str, line: str, nnet: acas.NNet, walker: LineWalker, q: np.ndarray, r: np.ndarray
) -> dict[str, object]:
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


def _plot(nnet: acas.NNet, name: str, lines: dict[str, Ends], grid: Ends) -> Figure:
    """Draw single lines and a grid of them, exactly on the left, by samples on the right."""
    walker = _walker(nnet)
    figure = Figure(figsize=(9, 12), layout="constrained")
    axes = figure.subplots(3, 2)
    for row, (line, ends) in zip(axes, lines.items(), strict=False):
        partition = walker.line(*ends)
        regions = partition.classify(lowest=True)
        _plot_regions(row[0], partition, regions, width=6, ticks=True)
        ratios = np.linspace(0, 1, 25)
        _plot_samples(row[1], partition.at(ratios), _advisories(nnet, partition, ratios))
        row[0].set_title(f"intruder {line}: exact, {len(partition)} parts")
        row[1].set_title(f"intruder {line}: 25 samples")
        if line == "ahead":
            for axis in row:
                axis.set_xlim(-ends[1][0] / 2, ends[1][0] / 2)
    for partition in walker.lines(*grid):
        _plot_regions(axes[2, 0], partition, partition.classify(lowest=True), width=0.9)
        ratios = np.linspace(0, 1, 13)
        labels = _advisories(nnet, partition, ratios)
        _plot_samples(axes[2, 1], partition.at(ratios), labels, size=3)
    axes[2, 0].set_title(f"{len(grid[0])} exact lines")
    axes[2, 1].set_title(f"{len(grid[0])} lines of 13 samples")
    for axis in axes.flat:
        axis.plot(0, 0, marker="^", color="black", markersize=6)
        axis.tick_params(labelsize=7)
        axis.locator_params(nbins=5)
    legend(figure, acas.ADVISORIES)
    figure.supxlabel(f"ft to the right of the ownship ({name})", fontsize=9)
    figure.supylabel("ft ahead of the ownship, which flies upwards", fontsize=9)
    return figure


def _polar(points: np.ndarray) -> np.ndarray:
    """Return plane coordinates `(n, 2)` of points whose first columns are ρ and θ.

    The ownship is at the origin and flies upwards; θ > 0 is to its left.
    """
    rho, theta = points[:, 0], points[:, 1]
    return np.stack([-rho * np.sin(theta), rho * np.cos(theta)], axis=1)


def _plot_regions(
    axes: Axes,
    partition: LinearPartition,
    regions: Regions,
    width: float = 4.0,
    ticks: bool = False,
) -> None:
    """Draw a line in the polar plane, coloured by class, exactly to its boundaries."""
    curves = []
    for start, stop in pairwise(regions.ratios):
        steps = max(2, int(np.ceil(100 * (stop - start))))
        curves.append(_polar(partition.at(np.linspace(start, stop, steps))))
    colours = [COLOURS[label] for label in regions.labels]
    axes.add_collection(LineCollection(curves, colors=colours, linewidths=width, capstyle="butt"))
    if ticks:
        x, y = _polar(partition.points).T
        axes.scatter(x, y, s=0.6, color="black", zorder=3)
    axes.autoscale_view()
    axes.set_aspect("equal")


def _plot_samples(axes: Axes, points: np.ndarray, labels: np.ndarray, size: float = 14.0) -> None:
    """Draw sampled points `(n, …)` in the polar plane, coloured by class."""
    x, y = _polar(points).T
    axes.scatter(x, y, c=[COLOURS[label] for label in labels], s=size, linewidths=0)
    axes.set_aspect("equal")


def legend(figure: Figure, names: Sequence[str]) -> None:
    """Write the legend of the classes' colours above a figure."""
    handles = [
        Line2D([], [], color=colour, linewidth=4, label=name)
        for colour, name in zip(COLOURS, names, strict=False)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(names), frameon=False)
