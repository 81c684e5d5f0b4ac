"""Plots of exact lines: the outputs along a line, with a tick wherever the network bends.

Nothing is sampled: between two ticks the network is affine, so straight segments from tick
to tick are its exact graph (Sotoudeh and Thakur 2019, figures 2, 4 and 5).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import new_axes
from nnslicer_tf.report.protocols import LineLike, RegionsLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_line(
    partition: LineLike,
    outputs: Sequence[int] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw outputs along a line, with a tick at every end of a part.

    Args:
        partition: The line; its outputs are a vector.
        outputs: Indices of the outputs to draw; all by default.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if the outputs are not a vector, or an index does not exist.
    """
    if partition.outputs.ndim != 2:
        raise InvalidArgumentError(
            f"Only a vector of outputs can be drawn. Their shape: {partition.outputs.shape[1:]}"
        )
    count = partition.outputs.shape[1]
    chosen = list(range(count)) if outputs is None else list(outputs)
    if not chosen or not all(0 <= index < count for index in chosen):
        raise InvalidArgumentError(f"outputs are indices in 0 … {count - 1}. Received: {outputs}")
    ax = new_axes(ax, (7, 3.8))
    for index in chosen:
        values = partition.outputs[:, index]
        ax.plot(partition.ratios, values, color=_colour(index), linewidth=1.2, label=f"{index}")
    # Drawn as lines, because minor ticks close to a major one would vanish.
    along = ax.get_xaxis_transform()
    ax.vlines(partition.ratios, 0, 0.04, color="#08519c", linewidth=0.6, transform=along)
    ax.set(xlim=(0, 1), ylabel="output")
    ax.set_xlabel(f"position on the line ({len(partition)} affine parts)")
    ax.legend(title="output", fontsize=7, title_fontsize=7, ncols=2)
    return ax


def plot_regions(regions: RegionsLike, ax: "Axes | None" = None) -> "Axes":
    """Draw the classes along a line as a strip, cut at the exact boundaries.

    A class has the colour that `plot_line` gives its output.
    """
    ax = new_axes(ax, (7, 1.3))
    for (start, stop), label in zip(pairwise(regions.ratios), regions.labels, strict=True):
        ax.axvspan(start, stop, color=_colour(label))
        ax.text((start + stop) / 2, 0.5, f"{label}", ha="center", va="center", fontsize=8)
    ax.set(xlim=(0, 1), ylim=(0, 1), yticks=[])
    ax.set_xlabel(f"position on the line ({len(regions)} regions)")
    return ax


def plot_ticks(lines: Mapping[str, LineLike], ax: "Axes | None" = None) -> "Axes":
    """Draw lines below each other, to scale, each with a tick at every end of a part.

    Args:
        lines: Name → line, starting at an image.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if there is no line.
    """
    if not lines:
        raise InvalidArgumentError("plot_ticks needs at least one line.")
    ax = new_axes(ax, (9, 0.7 + 0.4 * len(lines)))
    for row, partition in enumerate(lines.values()):
        ax.hlines(-row, 0, partition.length, color="#bdbdbd", linewidth=1)
        places = partition.ratios * partition.length
        ax.vlines(places, -row - 0.3, -row + 0.3, color="#08519c", linewidth=0.6)
    ax.set_yticks(-np.arange(len(lines)), [f"{k}: {len(v)} parts" for k, v in lines.items()])
    ax.set_xlabel("distance from the image (Euclidean)")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    return ax


def _colour(index: int) -> str:
    """Return the colour of an output or class."""
    return f"C{index % 10}"
