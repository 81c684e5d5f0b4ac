"""Common parts of all plots: axes, images, and writing figures to files."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf._files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_axes(ax: "Axes | None" = None, size: tuple[float, float] | None = None) -> "Axes":
    """Return `ax`, or the axes of a new pyplot figure, which notebooks show.

    Args:
        ax: Axes to draw into.
        size: Width and height of a new figure in inches.
    """
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.figure(figsize=size, layout="constrained").subplots()


def save_figure(
    figure: "Figure", path: str | os.PathLike, dpi: int = 110, tight: bool = False
) -> None:
    """Write a figure to a file, completely or not at all, and close it.

    Args:
        figure: The figure.
        path: The file; its ending determines the format. A PNG has at most 256 colours.
        dpi: Pixels per inch.
        tight: Cut off the empty margin.

    Raises:
        InvalidArgumentError: if nothing can be written there.
    """
    from matplotlib import pyplot

    try:
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=dpi, bbox_inches="tight" if tight else None)
            if Path(path).suffix == ".png":
                reduce_colours(temporary)
    finally:
        pyplot.close(figure)


def reduce_colours(path: str | os.PathLike) -> None:
    """Rewrite a PNG with a palette of 256 colours, about a third of its size."""
    from PIL import Image

    with Image.open(path) as image:
        image.load()
    palette = image.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    palette.save(path, format="PNG", optimize=True)


def show_image(ax: "Axes", image: np.ndarray) -> None:
    """Draw an image `(height, width[, channels])` stretched to its range, grey or RGB."""
    low, high = image.min(), image.max()
    scaled = (image - low) / (high - low) if high > low else np.zeros_like(image)
    grey = scaled.ndim == 2 or scaled.shape[-1] == 1
    ax.imshow(scaled.reshape(scaled.shape[:2]) if grey else scaled, cmap="gray")
