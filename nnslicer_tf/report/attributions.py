"""Attributions and contributions over images, tables, sentences and signals, and their curves.

Blue raises the target's score, red lowers it. Columns of a table are sorted by their attribution
and have one row in all panels; a signal is a line in front of its attributions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nnslicer_tf._checks import counted
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import figures

MAX_COLUMNS = 20  # Number of a table's columns that are drawn
MAX_LINES = 4  # Number of a signal's channels that are drawn as lines
PANELS = 4  # Pictures in a row
WIDTH = 3.4  # of a picture, in inches; on a page 340 pixels, so that it fits a phone

METHODS = {
    "slice": (figures.BLUE, "o"),
    "amounts": (figures.BLUE, "o"),
    "Shapley values": (figures.BLUE, "o"),
    "DeepLIFT": (figures.SKY, "*"),
    "gradient × input": (figures.ORANGE, "s"),
    "SmoothGrad": ("#8f6300", "p"),
    "expected gradients": ("#4a4ab0", "<"),
    "RISE": ("#5b2a86", ">"),
    "integrated gradients": (figures.GREEN, "^"),
    "integrated gradients, 50 samples": ("#00513b", "v"),
    "Grad-CAM": (figures.RED, "D"),
    "occlusion": ("#cc79a7", "P"),
    "random order": ("#8a8f98", "x"),
}
"""Method → colour and marker of its curve."""


@dataclass(frozen=True, eq=False)
class InputPanel:
    """One input of a sample, with the attributions of several methods."""

    sample: np.ndarray
    # method → attributions, of the sample's shape; the first one decides the order
    maps: Mapping[str, np.ndarray]
    title: str  # before each method's name; "" for the only input
    usual: np.ndarray | None = None  # the input's mean over data, shown with a table's values
    columns: Sequence[str] = ()  # a table's; indices by default
    words: Sequence[str] = ()  # of a sentence; the tokens by default
    is_text: bool = False  # the entries are tokens
    labels: Sequence[str] = ()  # of a table's lines, in place of its columns and values

    @property
    def few(self) -> bool:
        """Whether there are so few methods that each can have more room."""
        return len(self.maps) <= PANELS // 2

    @property
    def shown_words(self) -> Sequence[str]:
        """The words, or the tokens."""
        return list(self.words) or [str(int(token)) for token in self.sample.ravel()]

    @property
    def kind(self) -> str:
        """Whether it is "text", a "table", an "image", a "signal" or another "array"."""
        shape = self.sample.shape
        if self.is_text:
            return "text" if len(shape) < 2 else "array"
        if len(shape) < 2:
            return "table"
        if len(shape) == 3 and shape[-1] in (1, 3):
            return "image"
        return "signal" if len(shape) == 2 else "array"


@dataclass(frozen=True, eq=False)
class Cell:
    """A small picture: an input, one method's attributions of it, answers, or curves."""

    draw: Callable[[Axes], object]
    height: float  # in inches
    caption: str = ""  # what a page says below it
    span: int = 1  # number of columns of a figure that it takes


def cell_figure(cells: Sequence[Cell], title: str = "") -> Figure:
    """Return one figure of cells, with `PANELS` columns."""
    rows: list[list[Cell]] = [[]]
    for cell in cells:
        if sum(other.span for other in rows[-1]) + cell.span > PANELS:
            rows.append([])
        rows[-1].append(cell)
    heights = [max(cell.height for cell in row) for row in rows]
    figure = Figure(figsize=(WIDTH * PANELS, sum(heights) + 0.4), layout="constrained")
    grid = figure.add_gridspec(len(rows), PANELS, height_ratios=heights)
    for i, row in enumerate(rows):
        start = 0
        for cell in row:
            cell.draw(figure.add_subplot(grid[i, start : start + cell.span]))
            start += cell.span
    figure.suptitle(title, fontsize=11)
    return figure


def panel_cells(panel: InputPanel) -> list[Cell]:
    """Return the cells of an input: the sample, unless it is written in all, and each method."""
    if panel.kind == "text":
        letters = sum(len(word) + 2 for word in panel.shown_words)
        height = 0.5 + 0.24 * -(-letters // 36)
        return [
            Cell(partial(_draw_words, panel, method), height, span=2 if letters < 90 else PANELS)
            for method in panel.maps
        ]
    if panel.kind == "table":
        height, span = 0.8 + 0.25 * min(panel.sample.size, MAX_COLUMNS), 2 if panel.few else 1
        return [Cell(partial(_draw_bars, panel, m), height, span=span) for m in panel.maps]
    draw = {"image": _draw_image, "signal": _draw_signal}.get(panel.kind, _draw_array)
    return [Cell(partial(draw, panel, method), WIDTH) for method in (None, *panel.maps)]


def answer_cell(answers: pd.DataFrame) -> Cell:
    """Return a cell of a bar for each name and model.

    `answers` has a column of names, then a column of numbers for each model.
    """
    return Cell(partial(_draw_answers, answers), 1.2 + 0.45 * len(answers))


def curve_cell(
    of_methods: Mapping[str, tuple[np.ndarray, np.ndarray]], verb: str, answer: str
) -> Cell:
    """Return a cell of deletion or insertion curves, method → (shares, answers).

    `verb` is "hidden" or "shown", and `answer` names what the curves show.
    """
    moral = (
        "the earlier a curve falls, the better its method found what matters"
        if verb == "hidden"
        else "the earlier a curve rises, the better its method found what suffices"
    )
    caption = f"The most important features of each method are {verb} first: {moral}."
    return Cell(partial(_draw_curves, of_methods, verb, answer), 3.6, caption)


def _draw_bars(panel: InputPanel, method: str, ax: Axes) -> None:
    """Draw a table's columns, in the order of the first method, the largest at the top."""
    first = next(iter(panel.maps.values())).ravel()
    shown = np.argsort(-np.abs(first), kind="stable")[:MAX_COLUMNS]
    labels = []
    for k in shown:
        if panel.labels:
            labels.append(panel.labels[k])
            continue
        name = panel.columns[k] if len(panel.columns) else str(k)
        usual = "" if panel.usual is None else f" (mean {panel.usual.ravel()[k]:.3g})"
        labels.append(f"{name} = {panel.sample.ravel()[k]:.3g}{usual}")
    of_shown = panel.maps[method].ravel()[shown]
    colours = np.where(of_shown[:, None] > 0, figures.POSITIVE, figures.NEGATIVE) / 255
    ax.barh(np.arange(len(shown)), of_shown, color=colours)
    ax.axvline(0, color="black", linewidth=0.6)
    ax.set_yticks(np.arange(len(shown)), labels)
    ax.set_ylim(len(shown) - 0.5, -0.5)
    rest = first.size - len(shown)
    ax.set_xlabel("contribution" + (f"; {rest} smaller ones not shown" if rest else ""))
    _finish(ax, f"{panel.title}{method}", "right")  # above the names, too


def _draw_words(panel: InputPanel, method: str, ax: Axes) -> None:
    plot_words(panel.maps[method].ravel(), panel.shown_words, ax)
    ax.set_title(f"{panel.title}{method}", fontsize=10, loc="left")


def _draw_image(panel: InputPanel, method: str | None, ax: Axes) -> None:
    if method is None:
        figures.show_image(ax, panel.sample)
        ax.set_axis_off()
    else:
        plot_over_image(panel.maps[method], panel.sample, ax)
    _finish(ax, f"{panel.title}{method or 'the input'}")


def _draw_signal(panel: InputPanel, method: str | None, ax: Axes) -> None:
    """Draw a signal `(steps, channels)` over its attributions: lines, or if many, heat maps."""
    sample, values = panel.sample, panel.maps[method] if method else None
    steps, channels = sample.shape
    if channels > MAX_LINES:
        sheet = sample.T if values is None else figures.overlay(values.T)
        ax.imshow(sheet, aspect="auto", cmap="gray", interpolation="nearest")
        ax.set_ylabel("channel")
    else:
        greys = ("#30343b", "#70757e", "#9aa0a9", "#c3c7cd")
        for c in range(channels):
            ax.plot(np.arange(steps), sample[:, c], label=f"channel {c}", color=greys[c])
        if channels > 1:
            ax.legend(fontsize=9, frameon=False)
        ax.set_ylabel("value")
        if values is not None:
            bottom, top = ax.get_ylim()
            ax.imshow(
                figures.overlay(values.sum(axis=1)[None]),
                extent=(-0.5, steps - 0.5, bottom, top),
                aspect="auto",
                interpolation="nearest",
                zorder=0,
            )
            ax.set_ylim(bottom, top)
    ax.set_xlim(-0.5, steps - 0.5)
    _count_steps(ax)
    _finish(ax, f"{panel.title}{method or 'the input'}")


def _draw_array(panel: InputPanel, method: str | None, ax: Axes) -> None:
    values = panel.maps[method] if method else panel.sample
    rows = values.reshape(len(values), -1).T
    sheet = figures.overlay(rows) if method else rows
    ax.imshow(sheet, aspect="auto", cmap="gray", interpolation="nearest")
    _count_steps(ax)
    _finish(ax, f"{panel.title}{method or 'the input'}")


def _draw_answers(table: pd.DataFrame, ax: Axes) -> None:
    """Draw a bar for each name and model."""
    height = 0.26
    for i, name in enumerate(table.columns[1:]):
        places = np.arange(len(table)) + (i - 1) * height
        colour = ("#8a8f98", figures.BLUE, figures.ORANGE)[i]
        ax.barh(places, table[name], height, label=name, color=colour)
    ax.set_yticks(np.arange(len(table)), table.iloc[:, 0])
    ax.invert_yaxis()
    values = table.iloc[:, 1:].to_numpy()
    ax.set(xlabel="value", ylabel="answer")
    if values.min() >= 0 and values.max() <= 1:
        ax.set(xlabel="probability", xlim=(0, 1))
    # Above the axes, where it cannot hide a bar.
    ax.legend(fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=1, frameon=False)
    _finish(ax)


def _draw_curves(
    of_methods: Mapping[str, tuple[np.ndarray, np.ndarray]], verb: str, answer: str, ax: Axes
) -> None:
    """Draw curves; those that coincide are one, and later ones are thinner than those below."""
    every = [values for _, values in of_methods.values()]
    close = 0.01 * float(np.ptp(np.concatenate(every))) if every else 0.0
    curves: list[tuple[list[str], np.ndarray, np.ndarray]] = []
    for name, (shares, values) in of_methods.items():
        for names, _, other in curves:
            if np.abs(values - other).max() <= close:
                names.append(name)
                break
        else:
            curves.append(([name], shares, values))
    for i, (names, shares, values) in enumerate(curves):
        colour, _ = METHODS.get(names[0], (None, None))
        width = max(5.0 - 1.5 * i, 0.8)
        ax.plot(shares, values, label=fill(", ".join(names), 36), color=colour, linewidth=width)
    ax.set(xlabel=f"share of the features {verb}", ylabel=answer)
    ax.grid(alpha=0.3)
    ax.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.45, -0.22), frameon=False)
    _finish(ax, f"{verb}, largest first")


def _finish(ax: Axes, title: str = "", at: Literal["center", "right"] = "center") -> None:
    """Set the title; all text has at least nine points, which pages show as twelve pixels."""
    ax.set_title(title, fontsize=10, loc=at)
    ax.tick_params(labelsize=9)
    ax.xaxis.label.set_fontsize(9)
    ax.yaxis.label.set_fontsize(9)


def _count_steps(ax: Axes) -> None:
    """Name the axis of steps, and count them by whole numbers."""
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_over_image(values: np.ndarray, image: np.ndarray, ax: Axes | None = None) -> Axes:
    """Draw contributions or attributions over the image that they belong to.

    Args:
        values: One value for each pixel, or for each of its channels, such as
            `one.neurons[im.input_operation]` of a slice.
        image: `(height, width)` or `(height, width, channels)`; drawn in grey. Under the
            colours light stays light and dark stays dark.
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
    grey = image.mean(axis=-1) if image.ndim == 3 else image
    span = float(np.ptp(grey)) or 1.0
    sheet = figures.overlay(values, (grey - grey.min()) / span)
    ax = figures.new_axes(ax)
    ax.imshow(grey, cmap="gray", vmin=grey.min() - 0.2 * span, vmax=grey.min() + span)
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
    ax = figures.new_axes(ax)
    ax.imshow(figures.overlay(values.T), aspect="auto", interpolation="nearest")
    _count_steps(ax)
    ax.set_ylabel("unit")
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
            f"A sentence of {counted(len(words), 'word')} needs at least as many finite values. "
            f"Received: {values.dtype} of shape {values.shape}"
        )
    ax = figures.new_axes(ax)
    size = 9  # in points; a letter of a monospaced font is 0.602 as wide
    gap, line_height = 8.0, 17.0
    largest = np.abs(values[: len(words)]).max(initial=0) or 1.0
    widest = 72 * ax.get_window_extent().width / ax.figure.dpi
    left, line = 0.0, 0
    for word, value in zip(words, values, strict=False):
        width = 0.602 * size * len(word)
        if left and left + width > widest:
            left, line = 0.0, line + 1
        colour = np.array(figures.POSITIVE if value > 0 else figures.NEGATIVE) / 255
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
