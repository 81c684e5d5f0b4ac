"""Pictures of slices: a layer's neurons as pixels (NNSlicer, Figure 2).

Blue neurons have positive contributions, red ones negative; white ones are not in the slice.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import new_axes, show_image
from nnslicer_tf.report.palette import FIRST_ONLY, NEGATIVE, POSITIVE, SECOND_ONLY
from nnslicer_tf.report.protocols import SliceLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WHITE, _BORDER = (255, 255, 255), (215, 215, 215)
_TITLE = 42  # characters in 9 points that fit above a column
_LEGEND = "blue: positive contribution, red: negative, white: none"


def neuron_picture(contributions: np.ndarray) -> np.ndarray:
    """Return an operation's neurons as an image: blue positive, red negative.

    Args:
        contributions: CONTRIB of an operation: `(height, width, channels)` becomes one tile per
            channel, and `(units,)` (or channels) a rectangle of pixels.

    Returns:
        RGB image `(rows, columns, 3)` uint8.
    """
    return _coloured(_sheet(contributions), POSITIVE, NEGATIVE)


def unrolled_picture(contributions: np.ndarray, rows: int = 2) -> np.ndarray:
    """Return an operation's neurons as rows of pixels, in C order, as in the paper's Figure 2.

    Args:
        contributions: CONTRIB of an operation, of any shape.
        rows: Number of rows.

    Returns:
        RGB image `(rows, columns, 3)` uint8.

    Raises:
        InvalidArgumentError: if there are no neurons, or fewer than rows.
    """
    flat = np.ravel(contributions).astype(float)
    if not 1 <= rows <= len(flat):
        raise InvalidArgumentError(
            f"{len(flat)} neurons can be laid in 1 … {len(flat)} rows. Received: rows={rows!r}"
        )
    return _coloured(_in_rows(flat, math.ceil(len(flat) / rows)), POSITIVE, NEGATIVE)


def difference_picture(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the neurons in which two slices differ, laid out as in `neuron_picture`.

    Green neurons are only in the first slice, orange ones only in the second.

    Args:
        first: CONTRIB of an operation in one slice.
        second: The same operation in the other slice, of the same shape.

    Raises:
        InvalidArgumentError: if the shapes differ.
    """
    if np.shape(first) != np.shape(second):
        raise InvalidArgumentError(
            f"Only equal shapes can be compared. Received: {np.shape(first)}, {np.shape(second)}"
        )
    alone = (first != 0).astype(int) - (second != 0)
    return _coloured(_sheet(alone), FIRST_ONLY, SECOND_ONLY)


def plot_neurons(contributions: np.ndarray, ax: "Axes | None" = None) -> "Axes":
    """Draw an operation's neurons, with a tile for each channel; see `neuron_picture`."""
    ax = new_axes(ax)
    ax.imshow(neuron_picture(contributions), interpolation="nearest")
    ax.set_axis_off()
    return ax


def plot_unrolled(contributions: np.ndarray, rows: int = 2, ax: "Axes | None" = None) -> "Axes":
    """Draw an operation's neurons one after another in rows; see `unrolled_picture`.

    Raises:
        InvalidArgumentError: if there are no neurons, or fewer than rows.
    """
    picture = unrolled_picture(contributions, rows)
    ax = new_axes(ax, (8, 1.2))
    ax.imshow(picture, interpolation="nearest", aspect="auto")
    ax.set_axis_off()
    return ax


def plot_slices(
    slices: Mapping[str, SliceLike],
    operations: Sequence[str],
    images: Mapping[str, np.ndarray] | None = None,
) -> "Figure":
    """Draw slices side by side, with a column for each slice and a row for each operation.

    Args:
        slices: Title → slice; all of the same model.
        operations: Names of the operations to draw.
        images: Title → input image `(height, width, channels)` for the first row.

    Raises:
        InvalidArgumentError: if there is nothing to draw, or an operation is not in a slice.
    """
    _check_drawable(slices, operations)
    figure, axes = _grid(len(operations) + bool(images), len(slices))
    for column, (title, one) in enumerate(slices.items()):
        if images:
            axes[0, column].set_title(title)
            if title in images:
                show_image(axes[0, column], images[title])
        for row, name in enumerate(operations):
            axis = plot_neurons(one.neurons[name], axes[row + bool(images), column])
            label = _label(name, one.neurons[name])
            _entitle(axis, label if images or row else f"{title}\n{label}")
    figure.supxlabel(_LEGEND, fontsize=9)
    return figure


def plot_normal_and_adversarial(
    normal: SliceLike,
    adversarial: SliceLike,
    operations: Sequence[str],
    images: tuple[np.ndarray, np.ndarray],
) -> "Figure":
    """Draw the slices of a normal and an adversarial input, and their difference.

    Args:
        normal: Slice of the normal input, for its predicted class.
        adversarial: Slice of the adversarial input, for its predicted class.
        operations: Names of the operations to draw, one row each.
        images: The two inputs, `(height, width, channels)`.

    Raises:
        InvalidArgumentError: if there is nothing to draw, an operation is not in a slice,
            or the slices belong to different models.
    """
    _check_drawable({"normal": normal, "adversarial": adversarial}, operations)
    figure, axes = _grid(len(operations) + 1, 3)
    titles = ("normal", "adversarial", "difference of the inputs")
    shown = (*images, np.asarray(images[1], float) - np.asarray(images[0], float))
    for axis, title, image in zip(axes[0], titles, shown, strict=True):
        show_image(axis, image)
        axis.set_title(title)
    for row, name in enumerate(operations, start=1):
        pair = normal.neurons[name], adversarial.neurons[name]
        for axis, contributions in zip(axes[row], pair, strict=False):
            _entitle(plot_neurons(contributions, axis), _label(name, contributions))
        axes[row, 2].imshow(difference_picture(*pair), interpolation="nearest")
        changed = np.count_nonzero((pair[0] != 0) != (pair[1] != 0))
        _entitle(axes[row, 2], f"{name}: {changed:,} in only one slice")
    figure.supxlabel(f"{_LEGEND}; green: only normal, orange: only adversarial", fontsize=9)
    return figure


def _check_drawable(slices: Mapping[str, SliceLike], operations: Sequence[str]) -> None:
    if not slices or not operations:
        raise InvalidArgumentError("A picture needs at least one slice and one operation.")
    for title, one in slices.items():
        missing = [name for name in operations if name not in one.neurons]
        if missing:
            raise InvalidArgumentError(f"The slice {title!r} has no operation {missing[0]!r}.")


def _grid(rows: int, columns: int) -> "tuple[Figure, np.ndarray]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * columns, 1.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    return figure, axes


def _entitle(axis: "Axes", text: str) -> None:
    """Set a title in a font size that fits the width of a column."""
    longest = max(len(line) for line in text.split("\n"))
    axis.set_title(text, fontsize=9 * min(1, _TITLE / longest))


def _label(name: str, contributions: np.ndarray) -> str:
    kept = np.count_nonzero(contributions)
    return f"{name}: {kept:,} of {contributions.size:,} neurons"


def _sheet(values: np.ndarray) -> np.ndarray:
    """Arrange neurons: channels as tiles with a border of NaN, units in a rectangle."""
    if values.ndim == 1:
        return _in_rows(values.astype(float), math.ceil(math.sqrt(2 * len(values))))
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


def _in_rows(flat: np.ndarray, columns: int) -> np.ndarray:
    rows = math.ceil(len(flat) / columns)
    padded = np.full(rows * columns, np.nan)
    padded[: len(flat)] = flat
    return padded.reshape(rows, columns)


def _coloured(
    values: np.ndarray, positive: tuple[int, int, int], negative: tuple[int, int, int]
) -> np.ndarray:
    """Colour by sign; NaN is the border between tiles."""
    picture = np.empty((*values.shape, 3), np.uint8)
    picture[:] = _WHITE
    picture[values > 0] = positive
    picture[values < 0] = negative
    picture[np.isnan(values)] = _BORDER
    return picture
