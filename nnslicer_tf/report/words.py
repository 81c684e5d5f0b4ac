"""Plots of words' contributions over the sentence."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import new_axes
from nnslicer_tf.report.palette import NEGATIVE, POSITIVE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = 9  # font size in points
_LETTER = 0.602 * _SIZE  # width of a letter of a monospaced font
_GAP, _LINE = 8.0, 17.0  # points between words, and between lines


def plot_words(values: np.ndarray, words: Sequence[str], ax: "Axes | None" = None) -> "Axes":
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
            f"A sentence of {len(words)} words needs as many finite values, or more. Received: "
            f"{values.dtype} of shape {values.shape}"
        )
    ax = new_axes(ax)
    largest = np.abs(values[: len(words)]).max(initial=0) or 1.0
    widest = 72 * ax.get_window_extent().width / ax.figure.dpi
    at, line = 0.0, 0
    for word, value in zip(words, values, strict=False):
        width = _LETTER * len(word)
        if at and at + width > widest:
            at, line = 0.0, line + 1
        colour = np.array(POSITIVE if value > 0 else NEGATIVE) / 255
        strength = 0.8 * abs(value) / largest
        ax.annotate(
            word,
            (0, 1),
            (at, -_LINE * (line + 1)),
            xycoords="axes fraction",
            textcoords="offset points",
            family="monospace",
            fontsize=_SIZE,
            color="white" if strength > 0.5 else "black",
            bbox={"facecolor": (*colour, strength), "edgecolor": "none", "pad": 2.0},
        )
        at += width + _GAP
    ax.set_axis_off()
    return ax
