"""Common parts of the experiments' figures: colours and lines of methods, boxes."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproduction.palette import MARKERS, METHODS

_LETTERS_AN_INCH = 11  # in a title


def plot_methods(axis: Axes, table: pd.DataFrame, x: str, y: str) -> None:
    """Draw a line for every method of a table, over a grid."""
    for name, rows in table.groupby("method", sort=False):
        (line,) = axis.plot(rows[x], rows[y], markersize=5, label=str(name))
        line.set(color=METHODS[str(name)], marker=MARKERS[str(name)])
    axis.grid(alpha=0.3)


def plot_at_one_place(axis: Axes, table: pd.DataFrame, y: str) -> None:
    """Draw a bar for every method of a table that contains each method once."""
    colours = [METHODS[str(name)] for name in table["method"]]
    bars = axis.barh(np.arange(len(table)), table[y], color=colours)
    axis.bar_label(bars, [f"{100 * value:.1f} %" for value in table[y]], padding=3, fontsize=9)
    axis.set_yticks(np.arange(len(table)), table["method"])
    axis.set_ylim(len(table) - 0.5, -0.5)  # the first one on top
    axis.margins(x=0.2)


def plot_numbers(table: pd.DataFrame, title: str, least: float = 0.0) -> Figure:
    """Draw the numbers of a table as an annotated heat map."""
    size = (2.5 + 0.6 * table.shape[1], 1.6 + 0.3 * len(table))
    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(table, vmin=least, vmax=1, cmap="cividis", aspect="auto")
    light = (1 + least) / 2
    for (row, column), value in np.ndenumerate(table.to_numpy()):
        colour = "black" if value > light else "white"
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
    axis.set_xticks(range(table.shape[1]), list(table.columns), rotation=40, ha="right")
    axis.set_yticks(range(len(table)), list(table.index))
    put_finding(figure, title)
    figure.colorbar(image)
    return figure


def put_finding(figure: Figure, text: str) -> None:
    """Write a figure's finding above it, wrapped to the figure's width."""
    letters = int(_LETTERS_AN_INCH * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.wrap(text, letters)), fontsize=11)


def plot_boxes(axes: Axes, values: Mapping[str, Sequence[float]], label: str) -> None:
    """Draw a box (quartiles, 5 % and 95 %) for every named series."""
    axes.boxplot(
        list(values.values()), orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.6
    )
    axes.set_yticks(np.arange(1, len(values) + 1), list(values))
    axes.invert_yaxis()
    axes.set_xlabel(label)
