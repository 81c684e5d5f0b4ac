"""Plots of the contributions of a recurrent layer's units over time."""

from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import new_axes
from nnslicer_tf.report.overlays import overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_over_time(values: np.ndarray, title: str = "", ax: "Axes | None" = None) -> "Axes":
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
    ax.set_xlabel("step")
    ax.set_ylabel("unit")
    ax.set_title(title or "blue: positive, red: negative", fontsize=9)
    return ax
