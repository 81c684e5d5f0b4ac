"""Plots of pixels' contributions or attributions over the input.

For the contributions of a slice's input neurons, and for attributions.
"""

from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import new_axes
from nnslicer_tf.report.palette import NEGATIVE, POSITIVE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def overlay(values: np.ndarray) -> np.ndarray:
    """Return a transparent image to overlay on another: blue positive, red negative.

    Larger magnitudes are less transparent; the largest has an opacity of 0.9.

    Args:
        values: `(height, width)` or `(height, width, channels)`; channels are summed.

    Returns:
        RGBA image `(height, width, 4)` float64 in 0 … 1.

    Raises:
        InvalidArgumentError: if there are not two or three axes, or a value is not finite.
    """
    values = np.asarray(values, np.float64)
    if values.ndim not in (2, 3):
        raise InvalidArgumentError(
            f"Values over an image have two or three axes. Received: shape {values.shape}"
        )
    if not np.isfinite(values).all():
        raise InvalidArgumentError("Values over an image must be finite.")
    if values.ndim == 3:
        values = values.sum(axis=-1)
    sheet = np.zeros((*values.shape, 4))
    sheet[values > 0, :3] = np.array(POSITIVE) / 255
    sheet[values < 0, :3] = np.array(NEGATIVE) / 255
    largest = np.abs(values).max(initial=0)
    sheet[..., 3] = 0.9 * np.abs(values) / largest if largest else 0
    return sheet


def plot_over_image(values: np.ndarray, image: np.ndarray, ax: "Axes | None" = None) -> "Axes":
    """Draw contributions or attributions over the image that they belong to.

    Args:
        values: One value for each pixel, or for each of its channels, such as
            `one.neurons[im.input_operation]` of a slice.
        image: `(height, width)` or `(height, width, channels)`; drawn in light grey.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if values and image differ in height or width, or a value is not
            finite.
    """
    image = np.asarray(image, np.float64)
    if image.ndim not in (2, 3) or np.shape(values)[:2] != image.shape[:2]:
        raise InvalidArgumentError(
            "Values and image must be of one height and width. "
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
