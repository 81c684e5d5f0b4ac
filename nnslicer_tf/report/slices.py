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
from nnslicer_tf.report import figures

_LEGEND = "blue: positive contribution, red: negative, white: none"


def neuron_picture(contributions: np.ndarray) -> np.ndarray:
    """Return what `plot_neurons` draws, as an RGB image `(rows, columns, 3)` uint8."""
    return _coloured(_sheet(np.asarray(contributions, float)), figures.POSITIVE, figures.NEGATIVE)


def plot_neurons(contributions: np.ndarray, ax: Axes | None = None) -> Axes:
    """Draw an operation's neurons as pixels.

    CONTRIB of an operation `(height, width, channels)` becomes one tile per channel, that of
    `(units,)` (or channels) a rectangle of pixels.

    Raises InvalidArgumentError if there are no neurons, or values are NaN or infinite.
    """
    picture, ax = neuron_picture(contributions), figures.new_axes(ax)
    ax.imshow(picture, interpolation="nearest")
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

    Raises InvalidArgumentError if there is nothing to draw, an operation is not in a slice, or
    `difference` is set without exactly two slices of one model.
    """
    if difference and len(slices) != 2:
        raise InvalidArgumentError(f"difference=True needs two slices. Received: {len(slices)}")
    if not len(slices) or not len(operations):
        raise InvalidArgumentError("A picture needs at least one slice and one operation.")
    for title, one in slices.items():
        for name in operations:
            if name not in getattr(one, "neurons", ()):
                raise InvalidArgumentError(f"The slice {title!r} has no operation {name!r}.")
    rows, columns = len(operations) + bool(images), len(slices) + difference
    figure = Figure(figsize=(3 * columns, 1.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    legend, images = _LEGEND, images or {}
    for column, (title, one) in enumerate(slices.items()):
        if images:
            axes[0, column].set_title(title)
            if title in images:
                figures.show_image(axes[0, column], images[title])
        for row, name in enumerate(operations):
            axis = plot_neurons(one.neurons[name], ax=axes[row + bool(images), column])
            values = one.neurons[name]
            label = f"{name}: {np.count_nonzero(values):,} of {values.size:,} neurons"
            _entitle(axis, label if images or row else f"{title}\n{label}")
    if difference:
        first, second = slices
        legend += f"; green: only {first}, orange: only {second}"
        if first in images and second in images:
            change = np.asarray(images[second], float) - np.asarray(images[first], float)
            figures.show_image(axes[0, 2], change)
            axes[0, 2].set_title("difference of the inputs")
        for row, name in enumerate(operations):
            one, other = (slices[n].neurons[name] != 0 for n in (first, second))
            axis, alone = axes[row + bool(images), 2], one.astype(int) - other
            colours = figures.FIRST_ONLY, figures.SECOND_ONLY
            axis.imshow(_coloured(_sheet(alone), *colours), interpolation="nearest")
            _entitle(axis, f"{name}: {np.count_nonzero(alone):,} in only one slice")
    figure.supxlabel(legend, fontsize=9)
    return figure


def _entitle(axis: Axes, text: str) -> None:
    """Set a title in a font size that fits the width of a column: 42 characters in 9 points."""
    axis.set_title(text, fontsize=9 * min(1, 42 / max(map(len, text.split("\n")))))


def _sheet(values: np.ndarray) -> np.ndarray:
    """Arrange neurons: channels as tiles with a border of NaN, units in a rectangle."""
    if not (1 <= values.ndim <= 3 and values.size and np.isfinite(values).all()):
        raise InvalidArgumentError(
            f"Neurons must be finite numbers, in 1 to 3 axes. Received: shape {values.shape}"
        )
    if values.ndim == 1:
        columns = math.ceil(math.sqrt(2 * len(values)))
        padding = (0, -len(values) % columns)
        return np.pad(values.astype(float), padding, constant_values=np.nan).reshape(-1, columns)
    if values.ndim == 2:
        values = values[:, None, :]
    height, width, channels = values.shape
    columns = math.ceil(math.sqrt(channels * 2 * height / width))
    rows = math.ceil(channels / columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), np.nan)
    for channel in range(channels):
        top, left = channel // columns * (height + 1), channel % columns * (width + 1)
        sheet[top : top + height, left : left + width] = values[..., channel]
    return sheet


def _coloured(
    values: np.ndarray, positive: tuple[int, int, int], negative: tuple[int, int, int]
) -> np.ndarray:
    """Colour by sign; zeros are white, and NaN, the border between tiles, is grey."""
    picture = np.full((*values.shape, 3), 255, np.uint8)
    picture[values > 0] = positive
    picture[values < 0] = negative
    picture[np.isnan(values)] = (215, 215, 215)
    return picture
