"""Common parts of the experiments' figures: colours, markers and lines of methods, boxes.

Colours are those of Okabe and Ito ("Color universal design", 2008), safe for the colour-blind;
families of methods have shades of one of them.
"""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_LETTERS_AN_INCH = 11  # in a title

_LOOKS = {
    # NNSlicer's rankings and presets are blue.
    "NNSlicer": ("#0072b2", "o"),
    "NNSlicer (targeted)": ("#0072b2", "o"),
    "NNSlicer (all)": ("#56b4e9", "s"),
    "NNSlicer, θ = 0": ("#7f9fd6", "v"),
    "NNSlicer, ours": ("#00375c", "D"),
    "paper": ("#9cc9e8", "o"),
    "margin": ("#56b4e9", "s"),
    "fused": ("#0072b2", "D"),
    "slices": ("#7f9fd6", "v"),
    "stable": ("#00375c", "^"),
    "lean": ("#4a4ab0", "d"),
    "photos": ("#5b2a86", "p"),
    # Methods that NNSlicer is compared with.
    "EffectivePath": ("#e69f00", "*"),
    "EffectivePath margin": ("#8f6300", "X"),
    "FeatureMap": ("#009e73", "h"),
    "FeatureMap margin": ("#00513b", "P"),
    "Weight": ("#d55e00", "^"),
    "Channel": ("#cc79a7", "P"),
    "logit margin": ("#cc79a7", "<"),
    "Random": ("#8a8f98", "x"),
    "Everything": ("#222222", ">"),
    "flag everything": ("#222222", ">"),
    # Fault localisation: by gradients, by slices; DeepFault's formulas are dashed.
    "gradient_contrast": ("#0072b2", None),
    "patching": ("#00375c", None),
    "gradient": ("#56b4e9", None),
    "wrong_minus_right": ("#009e73", None),
    "contrast": ("#00513b", None),
    "tarantula": ("#e69f00", None),
    "ochiai": ("#d55e00", None),
    "dstar": ("#cc79a7", None),
    "deepfault_tarantula": ("#e69f00", None),
    "deepfault_ochiai": ("#d55e00", None),
    "deepfault_dstar": ("#cc79a7", None),
    "random": ("#8a8f98", None),
    # Semantic slicing.
    "NeuSemSlice": ("#0072b2", None),
    "NeuSemSlice, centred": ("#00375c", None),
    "Global": ("#8a8f98", None),
    "Category-wise": ("#e69f00", None),
    "DeepArc": ("#d55e00", None),
    # Searches for deviations.
    "DFlare": ("#0072b2", "o"),
    "Algorithm 1": ("#56b4e9", "s"),
    "DiffChaser": ("#e69f00", "^"),
    # Attributions.
    "slice": ("#0072b2", "o"),
    "amounts": ("#0072b2", "o"),
    "DeepLIFT": ("#56b4e9", "*"),
    "gradient × input": ("#e69f00", "s"),
    "SmoothGrad": ("#8f6300", "p"),
    "expected gradients": ("#4a4ab0", "<"),
    "RISE": ("#5b2a86", ">"),
    "integrated gradients": ("#009e73", "^"),
    "integrated gradients, 50 samples": ("#00513b", "v"),
    "Grad-CAM": ("#d55e00", "D"),
    "occlusion": ("#cc79a7", "P"),
    "random order": ("#8a8f98", "x"),
}

METHODS = {method: colour for method, (colour, _) in _LOOKS.items()}
"""Method → its colour in every figure."""

MARKERS = {method: marker for method, (_, marker) in _LOOKS.items() if marker}
"""Method → its marker in figures where curves may coincide."""


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
    figure.colorbar(image)
    return put_finding(figure, title)


def put_finding(figure: Figure, text: str) -> Figure:
    """Write a figure's finding above it, wrapped to the figure's width; return the figure."""
    letters = int(_LETTERS_AN_INCH * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.wrap(text, letters)), fontsize=11)
    return figure


def plot_boxes(axes: Axes, values: Mapping[str, Sequence[float]], label: str) -> None:
    """Draw a box (quartiles, 5 % and 95 %) for every named series."""
    axes.boxplot(
        list(values.values()), orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.6
    )
    axes.set_yticks(np.arange(1, len(values) + 1), list(values))
    axes.invert_yaxis()
    axes.set_xlabel(label)
