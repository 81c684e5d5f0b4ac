"""Common parts of the experiments' figures: colours of methods, lines of methods, boxes."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.report.palette import METHODS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTERS_AN_INCH = 11  # of a title

METHOD_COLOURS = METHODS
"""Method → its colour in every figure."""


def plot_methods(axis: "Axes", table: "pd.DataFrame", x: str, y: str) -> None:
    """Draw a line for every method of a table, over a grid.

    Args:
        axis: Where to draw.
        table: A row for each `method`, a key of `METHOD_COLOURS`, and place.
        x: Column of the places.
        y: Column of the values.
    """
    for name, rows in table.groupby("method", sort=False):
        axis.plot(rows[x], rows[y], marker="o", label=name, color=METHOD_COLOURS[str(name)])
    axis.grid(alpha=0.3)


def plot_at_one_place(axis: "Axes", table: "pd.DataFrame", y: str) -> None:
    """Draw a bar for every method of a table that has each of them once.

    Args:
        axis: Where to draw.
        table: A row for each `method`, a key of `METHOD_COLOURS`.
        y: Column of the values.
    """
    colours = [METHOD_COLOURS[str(name)] for name in table["method"]]
    bars = axis.barh(np.arange(len(table)), table[y], color=colours)
    axis.bar_label(bars, [f"{100 * value:.1f} %" for value in table[y]], padding=3, fontsize=9)
    axis.set_yticks(np.arange(len(table)), table["method"])
    axis.set_ylim(len(table) - 0.5, -0.5)  # the first one above
    axis.margins(x=0.15)


def put_finding(figure: "Figure", text: str) -> None:
    """Put what a figure shows above it, in lines that are not wider than the figure."""
    letters = int(_LETTERS_AN_INCH * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.wrap(text, letters)), fontsize=11)


def plot_boxes(axes: "Axes", values: Mapping[str, Sequence[float]], label: str) -> None:
    """Draw a box (quartiles, 5 % and 95 %) for every named series."""
    axes.boxplot(
        list(values.values()), orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.6
    )
    axes.set_yticks(np.arange(1, len(values) + 1), list(values))
    axes.invert_yaxis()
    axes.set_xlabel(label)
