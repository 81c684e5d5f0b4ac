"""Plots of contributions or attributions over the input: an image, a signal, a sentence."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from nnslicer_tf._checks import counted
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import NEGATIVE, POSITIVE, new_axes, overlay


def plot_over_image(values: np.ndarray, image: np.ndarray, ax: Axes | None = None) -> Axes:
    """Draw contributions or attributions over the image that they belong to.

    Args:
        values: One value for each pixel, or for each of its channels, such as
            `one.neurons[im.input_operation]` of a slice.
        image: `(height, width)` or `(height, width, channels)`; drawn in light grey.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: for a different height or width, or values that are not finite.
    """
    image = np.asarray(image, np.float64)
    if image.ndim not in (2, 3) or np.shape(values)[:2] != image.shape[:2]:
        raise InvalidArgumentError(
            "Values and image must have the same height and width. "
            f"Received: {np.shape(values)}, {image.shape}"
        )
    sheet = overlay(values)
    ax = new_axes(ax)
    grey = image.mean(axis=-1) if image.ndim == 3 else image
    span = float(np.ptp(grey)) or 1.0
    # With half the contrast, so that the colours stand out.
    ax.imshow(grey, cmap="gray", vmin=grey.min() - span, vmax=grey.min() + span)
    ax.imshow(sheet, interpolation="nearest")
    ax.set_axis_off()
    ax.set_title("blue: positive, red: negative", fontsize=9)
    return ax


def plot_over_time(values: np.ndarray, title: str = "", ax: Axes | None = None) -> Axes:
    """Draw contributions of units over time, with a row per unit and a column per time step.

    Args:
        values: `(time, units)`, such as `one.neurons["lstm:h"]` of a slice, or those of its input.
        title: Title of the plot.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if there are not two axes, or a value is not finite.
    """
    values = np.asarray(values)
    if values.ndim != 2:
        raise InvalidArgumentError(
            f"Values over time have two axes, time and units. Received: shape {values.shape}"
        )
    ax = new_axes(ax)
    ax.imshow(overlay(values.T), aspect="auto", interpolation="nearest")
    ax.set(xlabel="step", ylabel="unit")
    ax.set_title(title or "blue: positive, red: negative", fontsize=9)
    return ax


def plot_words(values: np.ndarray, words: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw the words of a sentence: blue for positive values, red for negative ones.

    Args:
        values: `(words,)` or longer; values after the last word are ignored.
        words: The words.
        ax: Where to draw; by default a new figure.

    Raises:
        InvalidArgumentError: if there are fewer values than words, or one is not finite.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or len(values) < len(words) or not np.isfinite(values).all():
        raise InvalidArgumentError(
            f"A sentence of {counted(len(words), 'word')} needs at least as many "
            "finite values. Received: "
            f"{values.dtype} of shape {values.shape}"
        )
    ax = new_axes(ax)
    size = 9  # in points; a letter of a monospaced font is 0.602 as wide
    gap, line_height = 8.0, 17.0
    largest = np.abs(values[: len(words)]).max(initial=0) or 1.0
    widest = 72 * ax.get_window_extent().width / ax.figure.dpi
    left, line = 0.0, 0
    for word, value in zip(words, values, strict=False):
        width = 0.602 * size * len(word)
        if left and left + width > widest:
            left, line = 0.0, line + 1
        colour = np.array(POSITIVE if value > 0 else NEGATIVE) / 255
        strength = 0.8 * abs(value) / largest
        ax.annotate(
            word,
            (0, 1),
            (left, -line_height * (line + 1)),
            xycoords="axes fraction",
            textcoords="offset points",
            family="monospace",
            fontsize=size,
            color="white" if strength > 0.5 else "black",
            bbox={"facecolor": (*colour, strength), "edgecolor": "none", "pad": 2.0},
        )
        left += width + gap
    ax.set_axis_off()
    return ax
