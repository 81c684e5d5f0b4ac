"""Pictures of slices: a layer's neurons as pixels (NNSlicer, Figure 2)."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.slicing import Slice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["neuron_picture", "plot_slices"]

_BLUE, _RED, _WHITE, _BORDER = (
    np.array(colour) for colour in ((31, 90, 180), (200, 40, 40), (255, 255, 255), (215, 215, 215))
)


def neuron_picture(contributions: np.ndarray) -> np.ndarray:
    """Return an operation's neurons as an image: blue positive, red negative.

    Args:
        contributions: CONTRIB of an operation: `(height, width, channels)` becomes one
            tile for each channel, `(units,)` (or channels) a rectangle of pixels.

    Returns:
        RGB image `(rows, columns, 3)` uint8.
    """
    if contributions.ndim == 2:
        contributions = contributions[:, None, :]
    if contributions.ndim == 1:
        columns = math.ceil(math.sqrt(2 * len(contributions)))
        rows = math.ceil(len(contributions) / columns)
        padded = np.full(rows * columns, np.nan)
        padded[: len(contributions)] = contributions
        return _coloured(padded.reshape(rows, columns))
    height, width, channels = contributions.shape
    columns = math.ceil(math.sqrt(channels * 2 * height / width))
    rows = math.ceil(channels / columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), np.nan)
    for channel in range(channels):
        top, left = channel // columns * (height + 1), channel % columns * (width + 1)
        sheet[top : top + height, left : left + width] = contributions[..., channel]
    return _coloured(sheet)


def plot_slices(
    slices: Mapping[str, Slice],
    operations: Sequence[str],
    images: Mapping[str, np.ndarray] | None = None,
) -> "Figure":
    """Draw slices side by side, one column each, one row for each operation.

    Args:
        slices: Title → slice; all of the same model.
        operations: Names of the operations to draw.
        images: Title → input image `(height, width, channels)` for the first row.

    Raises:
        InvalidArgumentError: if there is nothing to draw, or an operation is not in a slice.
    """
    from matplotlib.figure import Figure

    if not slices or not operations:
        raise InvalidArgumentError("plot_slices needs at least one slice and one operation.")
    for title, one in slices.items():
        missing = [name for name in operations if name not in one.neurons]
        if missing:
            raise InvalidArgumentError(f"The slice {title!r} has no operation {missing[0]!r}.")
    rows = [None, *operations] if images else list(operations)
    figure = Figure(figsize=(4.2 * len(slices), 2.1 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(slices), squeeze=False)
    for column, (title, one) in enumerate(slices.items()):
        for row, name in enumerate(rows):
            axis = axes[row, column]
            axis.set_axis_off()
            if name is None:
                if title in images:
                    _show_image(axis, images[title])
                axis.set_title(title)
                continue
            contributions = one.neurons[name]
            axis.imshow(neuron_picture(contributions), interpolation="nearest")
            kept = np.count_nonzero(contributions)
            label = f"{name}: {kept:,} of {contributions.size:,} neurons"
            axis.set_title(label if images or row else f"{title}\n{label}", fontsize=9)
    figure.supxlabel("blue: positive contribution, red: negative, white: none", fontsize=9)
    return figure


def _coloured(values: np.ndarray) -> np.ndarray:
    """Colour by sign; NaN is the border between tiles."""
    picture = np.empty((*values.shape, 3), np.uint8)
    picture[:] = _WHITE
    picture[values > 0] = _BLUE
    picture[values < 0] = _RED
    picture[np.isnan(values)] = _BORDER
    return picture


def _show_image(axis, image: np.ndarray) -> None:
    low, high = image.min(), image.max()
    scaled = (image - low) / (high - low) if high > low else np.zeros_like(image)
    axis.imshow(scaled[..., 0] if image.shape[-1] == 1 else scaled, cmap="gray")
