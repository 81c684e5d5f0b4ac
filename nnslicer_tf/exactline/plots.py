"""Figures of exact lines: regions of classes, polar overlays, densities.

Ticks and outputs along a line are in `nnslicer_tf.report`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.exactline.partition import LinearPartition, Regions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CLASS_COLOURS",
    "legend",
    "plot_boxes",
    "plot_regions",
    "plot_samples",
    "polar",
]

CLASS_COLOURS = ("#d9d9d9", "#9ecae1", "#fdbe85", "#08519c", "#d94701")
"""One a class; those of ACAS Xu: clear, weak left, weak right, strong left, strong right."""


def polar(points: np.ndarray) -> np.ndarray:
    """Return plane coordinates `(n, 2)` of points whose first columns are ρ and θ.

    The ownship is at the origin and flies upwards; θ > 0 is to its left.
    """
    rho, theta = points[:, 0], points[:, 1]
    return np.stack([-rho * np.sin(theta), rho * np.cos(theta)], axis=1)


def plot_regions(
    axes: "Axes",
    partition: LinearPartition,
    regions: Regions,
    width: float = 4.0,
    ticks: bool = False,
) -> None:
    """Draw a line in the polar plane, coloured by class, exactly to its boundaries.

    Args:
        axes: Where to draw.
        partition: The line; the first two inputs are ρ and θ.
        regions: Its classes.
        width: In points.
        ticks: Mark the ends of the parts by dots.
    """
    from matplotlib.collections import LineCollection

    curves = []
    for start, stop in pairwise(regions.ratios):
        steps = max(2, int(np.ceil(100 * (stop - start))))
        curves.append(polar(partition.at(np.linspace(start, stop, steps))))
    colours = [CLASS_COLOURS[label] for label in regions.labels]
    axes.add_collection(LineCollection(curves, colors=colours, linewidths=width, capstyle="butt"))
    if ticks:
        axes.scatter(*polar(partition.points).T, s=0.6, color="black", zorder=3)
    axes.autoscale_view()
    axes.set_aspect("equal")


def plot_samples(axes: "Axes", points: np.ndarray, labels: np.ndarray, size: float = 14.0) -> None:
    """Draw sampled points `(n, …)` in the polar plane, coloured by class."""
    places = polar(points)
    axes.scatter(*places.T, c=[CLASS_COLOURS[label] for label in labels], s=size, linewidths=0)
    axes.set_aspect("equal")


def plot_boxes(axes: "Axes", values: Mapping[str, Sequence[float]], label: str) -> None:
    """Draw a box (quartiles, 5 % and 95 %) for every named series."""
    axes.boxplot(
        list(values.values()), orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.6
    )
    axes.set_yticks(np.arange(1, len(values) + 1), list(values))
    axes.invert_yaxis()
    axes.set_xlabel(label)


def legend(figure: "Figure", names: Sequence[str]) -> None:
    """Write above a figure what the classes' colours stand for."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linewidth=4, label=name)
        for colour, name in zip(CLASS_COLOURS, names, strict=False)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(names), frameon=False)
