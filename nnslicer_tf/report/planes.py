"""Plots of exact planes: the classes in a polygon, with their exact boundaries."""

from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf.report.figures import new_axes
from nnslicer_tf.report.protocols import BoundaryLike, ClassesLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_plane(classes: ClassesLike, regions: bool = False, ax: "Axes | None" = None) -> "Axes":
    """Draw the classes in a polygon, and the boundaries between them.

    A class has the colour that `plot_line` gives its output.

    Args:
        classes: The regions, each with a class.
        regions: Also draw the borders of all regions, for planes with few of them.
        ax: Where to draw.
    """
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.patches import Patch

    ax = new_axes(ax, (5.5, 5))
    corners = np.split(classes.vertices[classes.loop], classes.start[1:-1])
    colours = [f"C{label % 10}" for label in classes.labels]
    edges = "#ffffff" if regions else colours
    # Faces have a border in their own colour, to close gaps of less than a pixel.
    ax.add_collection(
        PolyCollection(corners, facecolors=colours, edgecolors=edges, linewidths=0.15)
    )
    ax.add_collection(LineCollection(list(classes.boundary()), colors="black", linewidths=0.8))
    labels = np.unique(classes.labels)
    handles = [
        Patch(color=f"C{label % 10}", label=f"{label}: {100 * classes.area(label):.3g} %")
        for label in labels
    ]
    _legend(ax, "class: share", handles=handles)
    return _framed(ax, classes.corners)


def plot_boundary(boundary: BoundaryLike, ax: "Axes | None" = None) -> "Axes":
    """Draw decision boundaries, with a colour for each pair of classes, and the polygon."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Polygon

    ax = new_axes(ax, (5.5, 5))
    ax.add_patch(Polygon(boundary.corners, fill=False, edgecolor="#969696"))
    pairs, index = np.unique(boundary.labels, axis=0, return_inverse=True)
    for i, (a, b) in enumerate(pairs):
        segments = boundary.segments[index.ravel() == i]
        lines = LineCollection(segments, colors=f"C{i % 10}", linewidths=1.2, label=f"{a} | {b}")
        ax.add_collection(lines)
    if len(pairs):
        _legend(ax, "classes")
    return _framed(ax, boundary.corners)


def _legend(ax: "Axes", title: str, **options: Any) -> None:
    """Draw a legend next to the axes; searching for a free place inside them would be slow."""
    options |= {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "frameon": False}
    ax.legend(title=title, fontsize=7, title_fontsize=7, **options)


def _framed(ax: "Axes", corners: np.ndarray) -> "Axes":
    """Set limits around a polygon, with equal scales unless it is very thin."""
    low, wide = corners.min(axis=0), np.ptp(corners, axis=0)
    first, last = low - 0.03 * wide, low + 1.03 * wide
    ax.set(xlim=(first[0], last[0]), ylim=(first[1], last[1]))
    if wide.max() < 10 * wide.min():
        ax.set_aspect("equal")
    ax.set(xlabel="first direction of the plane", ylabel="second direction")
    return ax
