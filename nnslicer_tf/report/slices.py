"""Plots of slices: a layer's neurons as pixels (NNSlicer, Figure 2).

Blue neurons have positive contributions, red ones negative; white ones are not in the slice.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import (
    FIRST_ONLY,
    NEGATIVE,
    POSITIVE,
    SECOND_ONLY,
    new_axes,
    show_image,
)

_LEGEND = "blue: positive contribution, red: negative, white: none"


def neuron_picture(contributions: np.ndarray, rows: int | None = None) -> np.ndarray:
    """Return what `plot_neurons` draws, as an RGB image `(rows, columns, 3)` uint8."""
    values = np.asarray(contributions, float)
    if rows is None:
        return _coloured(_sheet(values), POSITIVE, NEGATIVE)
    if not 1 <= rows <= values.size:
        raise InvalidArgumentError(
            f"{values.size} neurons can be laid in 1 … {values.size} rows. Received: rows={rows!r}"
        )
    return _coloured(_in_rows(values.ravel(), math.ceil(values.size / rows)), POSITIVE, NEGATIVE)


def difference_picture(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the neurons in only the first (green) or only the second (orange) of two slices."""
    if np.shape(first) != np.shape(second):
        raise InvalidArgumentError(
            f"Only equal shapes can be compared. Received: {np.shape(first)}, {np.shape(second)}"
        )
    alone = (first != 0).astype(int) - (second != 0)
    return _coloured(_sheet(alone), FIRST_ONLY, SECOND_ONLY)


def plot_neurons(
    contributions: np.ndarray, rows: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw an operation's neurons as pixels.

    Args:
        contributions: CONTRIB of an operation: `(height, width, channels)` becomes one tile per
            channel, and `(units,)` (or channels) a rectangle of pixels.
        rows: Number of rows of pixels, filled in C order as in the paper, instead of tiles.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if there are no neurons, or fewer than rows.
    """
    picture = neuron_picture(contributions, rows)
    ax = new_axes(ax, None if rows is None else (8, 1.2))
    ax.imshow(picture, interpolation="nearest", aspect=None if rows is None else "auto")
    ax.set_axis_off()
    return ax


def plot_slices(
    slices: Mapping[str, Any],
    operations: Sequence[str],
    images: Mapping[str, np.ndarray] | None = None,
    difference: bool = False,
) -> Figure:
    """Draw slices side by side, with a column for each slice and a row for each operation.

    Args:
        slices: Title → slice; all of the same model.
        operations: Names of the operations to draw.
        images: Title → input image `(height, width, channels)` for the first row.
        difference: Add a column with the difference of two slices, such as those of a normal and an
            adversarial input, each for its predicted class, and that of their images.

    Raises:
        InvalidArgumentError: if there is nothing to draw, an operation is not in a slice, or
            `difference` is set without exactly two slices of one model.
    """
    if difference and len(slices) != 2:
        raise InvalidArgumentError(f"difference=True needs two slices. Received: {len(slices)}")
    figure, axes = _grid(slices, operations, bool(images), len(slices) + difference)
    legend, images = _LEGEND, images or {}
    for column, (title, one) in enumerate(slices.items()):
        if images:
            axes[0, column].set_title(title)
            if title in images:
                show_image(axes[0, column], images[title])
        for row, name in enumerate(operations):
            axis = plot_neurons(one.neurons[name], ax=axes[row + bool(images), column])
            label = _label(name, one.neurons[name])
            _entitle(axis, label if images or row else f"{title}\n{label}")
    if difference:
        first, second = slices
        legend += f"; green: only {first}, orange: only {second}"
        if first in images and second in images:
            change = np.asarray(images[second], float) - np.asarray(images[first], float)
            show_image(axes[0, 2], change)
            axes[0, 2].set_title("difference of the inputs")
        for row, name in enumerate(operations):
            pair = slices[first].neurons[name], slices[second].neurons[name]
            axis = axes[row + bool(images), 2]
            axis.imshow(difference_picture(*pair), interpolation="nearest")
            changed = np.count_nonzero((pair[0] != 0) != (pair[1] != 0))
            _entitle(axis, f"{name}: {changed:,} in only one slice")
    figure.supxlabel(legend, fontsize=9)
    return figure


def _grid(
    slices: Mapping[str, Any], operations: Sequence[str], with_images: bool, columns: int
) -> "tuple[Figure, np.ndarray]":
    """Return a figure with a row of axes for each operation, and one for images."""
    if not len(slices) or not len(operations):
        raise InvalidArgumentError("A picture needs at least one slice and one operation.")
    for title, one in slices.items():
        for name in operations:
            if name not in getattr(one, "neurons", ()):
                raise InvalidArgumentError(f"The slice {title!r} has no operation {name!r}.")
    rows = len(operations) + with_images
    figure = Figure(figsize=(3 * columns, 1.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    return figure, axes


def _entitle(axis: Axes, text: str) -> None:
    """Set a title in a font size that fits the width of a column: 42 characters in 9 points."""
    longest = max(len(line) for line in text.split("\n"))
    axis.set_title(text, fontsize=9 * min(1, 42 / longest))


def _label(name: str, contributions: np.ndarray) -> str:
    return f"{name}: {np.count_nonzero(contributions):,} of {contributions.size:,} neurons"


def _sheet(values: np.ndarray) -> np.ndarray:
    """Arrange neurons: channels as tiles with a border of NaN, units in a rectangle."""
    if values.ndim == 1:
        return _in_rows(values.astype(float), math.ceil(math.sqrt(2 * len(values))))
    if values.ndim == 2:
        values = values[:, None, :]
    if values.ndim != 3 or not values.size:
        raise InvalidArgumentError(
            f"Neurons must be a non-empty array of 1 to 3 axes. Received: shape {values.shape}"
        )
    height, width, channels = values.shape
    columns = math.ceil(math.sqrt(channels * 2 * height / width))
    rows = math.ceil(channels / columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), np.nan)
    for channel in range(channels):
        top, left = channel // columns * (height + 1), channel % columns * (width + 1)
        sheet[top : top + height, left : left + width] = values[..., channel]
    return sheet


def _in_rows(flat: np.ndarray, columns: int) -> np.ndarray:
    rows = math.ceil(len(flat) / columns)
    padded = np.full(rows * columns, np.nan)
    padded[: len(flat)] = flat
    return padded.reshape(rows, columns)


def _coloured(
    values: np.ndarray, positive: tuple[int, int, int], negative: tuple[int, int, int]
) -> np.ndarray:
    """Colour by sign; zeros are white, and NaN, the border between tiles, is grey."""
    picture = np.full((*values.shape, 3), 255, np.uint8)
    picture[values > 0] = positive
    picture[values < 0] = negative
    picture[np.isnan(values)] = (215, 215, 215)
    return picture
