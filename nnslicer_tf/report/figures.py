"""Common parts of all plots: colours, axes, images, and writing figures to files."""

import io
import os

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nnslicer_tf._checks import check_number
from nnslicer_tf._files import as_path, atomic_path
from nnslicer_tf.errors import InvalidArgumentError

POSITIVE, NEGATIVE = (31, 90, 180), (200, 40, 40)
"""RGB of positive and negative contributions, in pictures and in the explorer."""

FIRST_ONLY, SECOND_ONLY = (27, 158, 119), (217, 95, 2)
"""RGB of members of only the first, and of only the second, of two slices."""

BLUE, SKY, GREEN, ORANGE, RED = "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00"
"""Colours that the colour-blind can tell apart (Okabe and Ito, "Color universal design", 2008)."""


def new_axes(ax: Axes | None = None, size: tuple[float, float] | None = None) -> Axes:
    """Return `ax`, or the axes of a new pyplot figure; `size` is (width, height) in inches."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.figure(figsize=size, layout="constrained").subplots()


def figure_bytes(figure: Figure, kind: str, dpi: int = 110) -> bytes:
    """Return a figure as the content of a file, such as "svg", and close it."""
    from matplotlib import pyplot
    from PIL import Image

    try:
        figure.savefig(drawn := io.BytesIO(), dpi=dpi, format=kind)
    finally:
        pyplot.close(figure)
    if kind == "png":
        with Image.open(drawn) as image:
            colours = image.convert("RGB")
        palette = colours.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        palette.save(drawn := io.BytesIO(), format="PNG", optimize=True)
    return drawn.getvalue()


def save_figure(figure: Figure, path: str | os.PathLike, dpi: int = 110) -> None:
    """Write a figure to a file, completely or not at all, and close it.

    Args:
        figure: The figure.
        path: The file; its ending determines the format. A PNG gets a palette of 256 colours, which
            makes it about a third of the size.
        dpi: Pixels per inch.

    Raises InvalidArgumentError if nothing can be written there.
    """
    check_number("dpi", dpi, "(0, inf)")
    kind, kinds = as_path(path).suffix[1:].lower(), figure.canvas.get_supported_filetypes()
    if kind not in kinds:
        raise InvalidArgumentError(f"Figures end in {', '.join(sorted(kinds))}. Received: '{path}'")
    # In memory first: Matplotlib hides the error of a full disk behind others.
    content = figure_bytes(figure, kind, dpi)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def show_image(ax: Axes, image: np.ndarray) -> None:
    """Draw an image `(height, width[, channels])` stretched to its range, grey or RGB."""
    low, high = image.min(), image.max()
    scaled = (image - low) / (high - low) if high > low else np.zeros_like(image)
    grey = scaled.ndim == 2 or scaled.shape[-1] == 1
    ax.imshow(scaled.reshape(scaled.shape[:2]) if grey else scaled, cmap="gray")


def overlay(values: np.ndarray) -> np.ndarray:
    """Return a transparent image to overlay on another: blue positive, red negative.

    Values are `(height, width[, channels])`, finite; channels are summed. The result, `(height,
    width, 4)` float64 in 0 … 1, is opaque where the magnitude is largest.
    """
    values = np.asarray(values, np.float64)
    if values.ndim not in (2, 3) or not values.size or not np.isfinite(values).all():
        raise InvalidArgumentError(
            "Values over an image must be a non-empty, finite array of two or three axes. "
            f"Received: shape {values.shape}"
        )
    if values.ndim == 3:
        values = values.sum(axis=-1)
    sheet = np.zeros((*values.shape, 4))
    sheet[..., :3] = np.array((NEGATIVE, POSITIVE))[(values > 0).astype(int)] / 255
    sheet[..., 3] = np.abs(values) / (np.abs(values).max(initial=0) or 1.0)
    return sheet
