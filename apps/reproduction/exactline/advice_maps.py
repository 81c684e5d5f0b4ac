"""Exact decision maps of ACAS Xu: the advice for every position of an intruder."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from nnslicer_tf._checks import counted
from nnslicer_tf._environment import track
from nnslicer_tf.exactline import PlaneWalker, acas
from nnslicer_tf.exactline.mesh import Mesh, cut_by_lines
from nnslicer_tf.exactline.planar_partition import PlanarClasses
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.exactline.boundaries import COLOURS, legend, network_files, polar
from reproduction.exactline.settings import AdviceSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, compact

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

    The inputs are distance ρ in ft, angle θ, heading ψ, and both speeds; ρ goes from 0 to `REACH`,
    θ all around.
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
            areas = _physical(classes.mesh())
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
    drawn = _drawn(acas.load_nnet(paths[0]), paths[0].stem, min(s.samples))
    return ExperimentResult(
        [
            ExperimentTable("acas_planes", table),
            ExperimentTable("acas_planes_summary", pd.DataFrame(summary), title, head, _TEXT),
        ],
        [ExperimentFigure("acas_planes", plot(drawn), 120, drawn=drawn)],
    )


_TEXT = (
    "Shares are of the physical area, ρ dρ dθ. A grid of n × n samples in (ρ, θ) takes the advice "
    "at the middle of each of its cells for the whole cell; `missed` is the exact share of the "
    "area in which the network advises something else, and `classes_missed` counts advice that no "
    "sample shows."
)


def _walker(nnet: acas.NNet) -> PlaneWalker:
    return PlaneWalker(InstrumentedModel(acas.to_keras(nnet, "float64")))


def _physical(mesh: Mesh) -> np.ndarray:
    """Return the physical areas of faces in (ρ, θ), which are the integrals of ρ."""
    return mesh.integrals(mesh.places[:, :1])[:, 0]


def _missed(classes: PlanarClasses, count: int) -> tuple[float, set[int]]:
    """Return the share of the area whose advice its sample misses, and all sampled advice."""
    size = classes.corners.max(axis=0)
    lines = (np.arange(1, count) / count)[:, None] * size
    mesh = classes.mesh()
    for axis in (0, 1):
        mesh = cut_by_lines(mesh, mesh.places[:, [axis]] - lines[:, axis])
    sampled = classes.label_at(_middles(classes.corners, count)[0]).reshape(count, count)
    middles = mesh.middles()
    cell = np.clip((middles / size * count).astype(int), 0, count - 1)
    areas = _physical(mesh)
    differ = sampled[cell[:, 0], cell[:, 1]] != classes.label_at(middles)
    return float(areas[differ].sum() / areas.sum()), set(sampled.ravel().tolist())


def _drawn(nnet: acas.NNet, name: str, samples: int) -> dict[str, np.ndarray]:
    """Return the exact map of four scenarios, and the advice at samples of a grid."""
    walker = _walker(nnet)
    drawn = {"network": np.array(name)}
    for title in _SHOWN:
        partition = walker.plane(scenario(title))
        classes = partition.classify(lowest=True)
        middles, _ = _middles(classes.corners, samples)
        drawn |= {
            f"{title}/{field}": compact(getattr(classes, field))
            for field in ("corners", "start", "loop")
        }
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
        _draw(above, np.split(vertices[part["loop"]], part["start"][1:-1]), part["labels"])
        counts.append(int(part["regions"]))
        above.set_title(f"{title}:\nexact, {counted(counts[-1], 'region')}", fontsize=9)
        samples = math.isqrt(len(part["sampled"]))
        middles, size = _middles(part["corners"], samples)
        square = (np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) - 0.5) * size
        _draw(below, list(middles[:, None] + square), part["sampled"])
        below.set_title(f"{samples} × {samples} samples", fontsize=9)
    legend(figure, acas.ADVISORIES)
    for axis in axes[1]:
        axis.set_xlabel("ft to the right", fontsize=9)
    figure.supylabel("ft ahead of the ownship, which flies upwards", fontsize=9)
    put_finding(
        figure,
        f"{drawn['network']}: {min(counts):,} to {max(counts):,} regions make up the exact advice, "
        "of which samples show blocks",
    )
    return figure


def _middles(corners: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the centres of the cells of a grid in (ρ, θ), and the size of a cell."""
    size = corners.max(axis=0) / count
    first = np.stack(np.meshgrid(np.arange(count), np.arange(count), indexing="ij"), axis=-1)
    return (first.reshape(-1, 2) + 0.5) * size, size


def _draw(axes: Axes, polygons: list[np.ndarray], labels: np.ndarray) -> None:
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
    axes.add_collection(
        PolyCollection(curved, facecolors=colours, edgecolors=colours, linewidths=0.2)
    )
    axes.plot(0, 0, marker="^", color="black", markersize=5)
    axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal")
    axes.tick_params(labelsize=8)
    axes.locator_params(nbins=3)
