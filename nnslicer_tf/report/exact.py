"""Plots of exact lines and planes, from `nnslicer_tf.exactline`: outputs, classes and boundaries.

Nothing is sampled: between two ticks the network is affine, so straight segments are its exact
graph (Sotoudeh and Thakur 2019, figures 2, 4 and 5). Classes have the same colours in all plots.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Patch, Polygon

from nnslicer_tf._checks import counted
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import new_axes


def plot_line(line: Any, outputs: Sequence[int] | None = None, ax: Axes | None = None) -> Axes:
    """Draw outputs along a line, with a tick at every end of a part.

    Args:
        line: A `LinearPartition` whose outputs are a vector.
        outputs: Indices of the outputs to draw; all by default.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if the outputs are not a vector, or an index does not exist.
    """
    if line.outputs.ndim != 2:
        raise InvalidArgumentError(
            f"Only a vector of outputs can be drawn. Their shape: {line.outputs.shape[1:]}"
        )
    count = line.outputs.shape[1]
    chosen = list(range(count)) if outputs is None else list(outputs)
    if not chosen or not all(0 <= index < count for index in chosen):
        raise InvalidArgumentError(
            f"outputs must be indices in 0 … {count - 1}. Received: {outputs}"
        )
    ax = new_axes(ax, (7, 3.8))
    for index in chosen:
        values = line.outputs[:, index]
        ax.plot(line.ratios, values, color=f"C{index % 10}", linewidth=1.2, label=f"{index}")
    # Drawn as lines, because minor ticks close to a major one would vanish.
    along = ax.get_xaxis_transform()
    ax.vlines(line.ratios, 0, 0.04, color="#08519c", linewidth=0.6, transform=along)
    ax.set(xlim=(0, 1), ylabel="output")
    ax.set_xlabel(f"position on the line ({len(line)} affine parts)")
    ax.legend(title="output", fontsize=7, title_fontsize=7, ncols=2)
    return ax


def plot_regions(regions: Any, ax: Axes | None = None) -> Axes:
    """Draw the classes along a line, `Regions`, as a strip that is cut at the boundaries."""
    ax = new_axes(ax, (7, 1.3))
    for (start, stop), label in zip(pairwise(regions.ratios), regions.labels, strict=True):
        ax.axvspan(start, stop, color=f"C{label % 10}")
        ax.text((start + stop) / 2, 0.5, f"{label}", ha="center", va="center", fontsize=8)
    ax.set(xlim=(0, 1), ylim=(0, 1), yticks=[])
    ax.set_xlabel(f"position on the line ({counted(len(regions), 'region')})")
    return ax


def plot_ticks(lines: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Draw lines below each other, to scale, each with a tick at every end of a part.

    Args:
        lines: Name → `LinearPartition`, starting at an image; at least one.
        ax: Where to draw.
    """
    if not lines:
        raise InvalidArgumentError("plot_ticks needs at least one line.")
    ax = new_axes(ax, (9, 0.7 + 0.4 * len(lines)))
    for row, line in enumerate(lines.values()):
        ax.hlines(-row, 0, line.length, color="#bdbdbd", linewidth=1)
        places = line.ratios * line.length
        ax.vlines(places, -row - 0.3, -row + 0.3, color="#08519c", linewidth=0.6)
    ax.set_yticks(-np.arange(len(lines)), [f"{k}: {len(v)} parts" for k, v in lines.items()])
    ax.set_xlabel("distance from the image (Euclidean)")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    return ax


def plot_plane(classes: Any, regions: bool = False, ax: Axes | None = None) -> Axes:
    """Draw the classes in a polygon, `PlanarClasses`, and the boundaries between them.

    Args:
        classes: The regions, each with a class.
        regions: Also draw the borders of all regions, for planes with few of them.
        ax: Where to draw.
    """
    ax = new_axes(ax, (5.5, 5))
    corners = np.split(classes.vertices[classes.loop], classes.start[1:-1])
    colours = [f"C{label % 10}" for label in classes.labels]
    edges = "#ffffff" if regions else colours
    # Faces have a border in their own colour, to close gaps of less than a pixel.
    ax.add_collection(
        PolyCollection(corners, facecolors=colours, edgecolors=edges, linewidths=0.15)
    )
    ax.add_collection(LineCollection(list(classes.boundary()), colors="black", linewidths=0.8))
    handles = [
        Patch(color=f"C{label % 10}", label=f"{label}: {100 * classes.area(label):.3g} %")
        for label in np.unique(classes.labels)
    ]
    return _framed(ax, classes.corners, "class: share", handles)


def plot_boundary(boundary: Any, ax: Axes | None = None) -> Axes:
    """Draw a `PlanarBoundary`, with a colour for each pair of classes, and the polygon."""
    ax = new_axes(ax, (5.5, 5))
    ax.add_patch(Polygon(boundary.corners, fill=False, edgecolor="#969696"))
    pairs, index = np.unique(boundary.labels, axis=0, return_inverse=True)
    handles: list[Any] = []
    for i, (a, b) in enumerate(pairs):
        segments = boundary.segments[index.ravel() == i]
        lines = LineCollection(segments, colors=f"C{i % 10}", linewidths=1.2, label=f"{a} | {b}")
        handles.append(ax.add_collection(lines))
    return _framed(ax, boundary.corners, "classes", handles)


def _framed(ax: Axes, corners: np.ndarray, title: str, handles: Sequence[Any]) -> Axes:
    """Set limits around a polygon, with equal scales unless it is very thin; add a legend."""
    low, wide = corners.min(axis=0), np.ptp(corners, axis=0)
    first, last = low - 0.03 * wide, low + 1.03 * wide
    ax.set(xlim=(first[0], last[0]), ylim=(first[1], last[1]))
    if wide.max() < 10 * wide.min():
        ax.set_aspect("equal")
    ax.set(xlabel="first direction of the plane", ylabel="second direction")
    if handles:
        # Beside the axes, because a search for a free place inside them would be slow.
        ax.legend(
            handles=handles,
            title=title,
            fontsize=7,
            title_fontsize=7,
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
            frameon=False,
        )
    return ax
