"""Attributions and contributions over images, tables, sentences and signals, and their curves.

Blue raises the target's score, red lowers it. Columns of a table are sorted by their attribution
and have one row in all panels; a signal is a line in front of its attributions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colors, rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nnslicer_tf._checks import counted
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import figures
from nnslicer_tf.report.pages import INK

MAX_COLUMNS = 20  # Number of a table's columns that are drawn
MAX_LINES = 4  # Number of a signal's channels that are drawn as lines
PANELS = 4  # Pictures in a row
TEXT: Any = {"font.size": 9}  # points; a page shows nine as twelve pixels
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
ON_PAGE: Any = {**TEXT, "svg.fonttype": "none", "figure.facecolor": "none"}
ON_PAGE |= {"axes.facecolor": "none", **dict.fromkeys(_INKED, INK)}
WIDTH = 3.4  # of a picture, in inches; on a page 340 pixels, so that it fits a phone

CURVES = (figures.BLUE, figures.ORANGE, figures.GREEN, "#8a8f98")
_ENDS = np.array([figures.NEGATIVE, (236, 236, 236), figures.POSITIVE]) / 255
_RAMP = colors.LinearSegmentedColormap.from_list("contributions", _ENDS.tolist())


@dataclass(frozen=True, eq=False)
class InputPanel:
    """One input of a sample, with the attributions of several methods."""

    sample: np.ndarray
    # method → attributions, of the sample's shape; the first one decides the order
    maps: Mapping[str, np.ndarray]
    title: str  # before each method's name; "" for the only input
    words: Sequence[str] = ()  # of a sentence, or its tokens
    labels: Sequence[str] = ()  # of a table's lines; indices by default
    score: str = "the score"  # what attributions raise and lower


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
    with rc_context(TEXT):
        for i, row in enumerate(rows):
            start = 0
            for cell in row:
                cell.draw(figure.add_subplot(grid[i, start : start + cell.span]))
                start += cell.span
        figure.suptitle(title)
    return figure


def cell_bytes(cell: Cell, kind: str) -> bytes:
    """Return a cell as a picture of its own, "png", or "svg" for a page, light or dark."""
    with rc_context(ON_PAGE if kind == "svg" else TEXT):
        figure = Figure(figsize=(WIDTH, cell.height), layout="constrained")
        cell.draw(figure.subplots())
        return figures.figure_bytes(figure, kind, dpi=200)


def panel_cells(panel: InputPanel) -> tuple[list[Cell], list[Cell]]:
    """Return the cells of the sample and its first method, and those of the other methods."""
    shape, drawn, draw = panel.sample.shape, list[Any](panel.maps), _draw_bars
    own, span, height = 1, 1, 0.8 + 0.25 * min(panel.sample.size, MAX_COLUMNS)
    if panel.words:
        letters = sum(len(word) + 2 for word in panel.words)
        draw, height = _draw_words, 0.5 + 0.24 * -(-letters // 36)
        span = 2 if letters < 90 else PANELS
    elif len(shape) > 1:
        draw = _draw_image if len(shape) == 3 and shape[-1] in (1, 3) else _draw_steps
        own, height, drawn = 2, WIDTH, [None, *drawn]  # the sample is drawn by itself, too
    else:
        span = 2 if len(drawn) <= 2 else 1
    cells = [Cell(partial(draw, panel, method), height, span=span) for method in drawn]
    return cells[:own], cells[own:]


def answer_cell(rows: Mapping[str, tuple[float, str]], what: str, title: str) -> Cell:
    """Return a cell of a model's answers: title → (value, text), a bar with its text for each."""
    values = np.nan_to_num([value for value, _ in rows.values()])
    low, high = min(0.0, values.min()), max(0.0, values.max())
    high = 1.0 if low == 0 and high <= 1 else high  # a probability

    def draw(ax: Axes) -> None:
        ax.barh(list(rows), values, 0.6, color=figures.BLUE)
        for place, (value, (_, text)) in enumerate(zip(values, rows.values(), strict=True)):
            fits = value > 0.6 * high  # into the bar
            options: Any = {"ha": "right" if fits else "left", "va": "center"}
            options["color"] = "white" if fits else rcParams["text.color"]
            options |= {"xytext": (-3 if fits else 3, 0), "textcoords": "offset points"}
            ax.annotate(text, (max(value, 0), place), **options)
        ax.set(xlim=(low, high), ylim=(len(rows) - 0.4, -0.6), xlabel=what)
        ax.set_title(title, loc="right")

    return Cell(draw, 0.8 + 0.35 * len(rows))


def curve_cell(
    of_methods: Mapping[str, tuple[np.ndarray, np.ndarray]], verb: str, answer: str
) -> Cell:
    """Return a cell of deletion or insertion curves, method → (shares, answers).

    `verb` is "hidden" or "shown", and `answer` names what the curves show.
    """
    moves = "falls" if verb == "hidden" else "rises"
    caption = (
        f"The most important features are {verb} first: the earlier a curve {moves}, the better "
        "its method found what matters."
    )
    return Cell(partial(_draw_curves, of_methods, verb, answer), 3.6, caption)


def _draw_bars(panel: InputPanel, method: str, ax: Axes) -> None:
    """Draw a table's columns, in the order of the first method, the largest at the top."""
    first = next(iter(panel.maps.values())).ravel()
    shown = np.argsort(-np.abs(first), kind="stable")[:MAX_COLUMNS]
    labels = [panel.labels[k] if panel.labels else str(k) for k in shown]
    of_shown = panel.maps[method].ravel()[shown]
    colours = np.where(of_shown[:, None] > 0, figures.POSITIVE, figures.NEGATIVE) / 255
    ax.barh(np.arange(len(shown)), of_shown, color=colours)
    ax.axvline(0, color=rcParams["text.color"], linewidth=0.6)
    ax.set_yticks(np.arange(len(shown)), labels)
    ax.set_ylim(len(shown) - 0.5, -0.5)
    rest = first.size - len(shown)
    more = f"; {rest} smaller ones not shown" if rest else ""
    ax.set_xlabel(f"lowers ← {panel.score} → raises{more}", loc="right")
    ax.set_title(f"{panel.title}{method}", loc="right")  # above the names, too


def _draw_words(panel: InputPanel, method: str, ax: Axes) -> None:
    values = panel.maps[method].ravel()
    plot_words(values, panel.words, ax)
    largest = np.abs(values[: len(panel.words)]).max(initial=0)
    ax.set_title(f"{panel.title}{method}; darkest: ±{largest:.3g}", loc="left")


def _draw_image(panel: InputPanel, method: str | None, ax: Axes) -> None:
    title = f"{panel.title}{method or 'the input'}"
    if method is None:
        figures.show_image(ax, panel.sample)
        ax.set_axis_off()
    else:
        plot_over_image(panel.maps[method], panel.sample, ax)
        sums = panel.maps[method].reshape(*panel.sample.shape[:2], -1).sum(axis=-1)
        largest = float(f"{np.abs(sums).max():.3g}") or 1.0
        scale = ScalarMappable(colors.Normalize(-largest, largest), _RAMP)
        below = ax.inset_axes((0, -0.07, 1, 0.035))
        bar = ax.figure.colorbar(scale, cax=below, orientation="horizontal")
        bar.set_ticks([-largest, 0, largest])
        title += f"\nblue raises {panel.score}"
    ax.set_title(title)


def _draw_steps(panel: InputPanel, method: str | None, ax: Axes) -> None:
    """Draw a signal `(steps, channels)` over its attributions: lines, or if many, heat maps."""
    sample = panel.sample.reshape(len(panel.sample), -1)
    values = panel.maps[method].reshape(len(sample), -1) if method else None
    steps, channels = sample.shape
    if channels > MAX_LINES:
        sheet = sample.T if values is None else figures.overlay(values.T)
        ax.imshow(sheet, aspect="auto", cmap="gray", interpolation="nearest")
        ax.set_ylabel("channel")
    else:
        greys = (rcParams["text.color"], "#70757e", "#9aa0a9", "#c3c7cd")
        for c in range(channels):
            ax.plot(np.arange(steps), sample[:, c], label=f"channel {c}", color=greys[c])
        if channels > 1:
            ax.legend(frameon=False)
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
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_title(f"{panel.title}{method or 'the input'}")


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
        area = np.sum(np.diff(shares) * (values[1:] + values[:-1]) / 2)
        label, width = f"{fill(', '.join(names), 36)}: area {area:.2f}", max(3.0 - 0.7 * i, 0.8)
        ax.plot(shares, values, label=label, color=CURVES[i % len(CURVES)], linewidth=width)
    ax.set(xlabel=f"share of the features {verb}", ylabel=answer)
    ax.grid(alpha=0.3)
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.22), frameon=False)
    ax.set_title(f"{verb}, largest first")


def plot_over_image(values: np.ndarray, image: np.ndarray, ax: Axes | None = None) -> Axes:
    """Draw contributions or attributions over the image that they belong to.

    Args:
        values: One value for each pixel, or for each of its channels, such as
            `one.neurons[im.input_operation]` of a slice.
        image: `(height, width)` or `(height, width, channels)`; only an outline of its light
            parts is drawn, so that all colours are those of the scale.
        ax: Where to draw.

    Raises InvalidArgumentError for a different height or width, or values that are not finite.
    """
    image = np.asarray(image, np.float64)
    fits = image.ndim in (2, 3) and np.shape(values)[:2] == image.shape[:2] and image.size
    if not fits or not np.isfinite(image).all():
        raise InvalidArgumentError(
            "Values and a finite image must have the same height and width. "
            f"Received: {np.shape(values)}, {image.shape}"
        )
    grey = image.mean(axis=-1) if image.ndim == 3 else image
    sheet = figures.overlay(values)
    ax = figures.new_axes(ax)
    ax.imshow(np.full((*grey.shape, 3), _ENDS[1]))
    ax.imshow(sheet, interpolation="nearest")
    if np.ptp(grey) and min(grey.shape) > 1:
        fine = max(1, 128 // max(grey.shape))  # along the pixels of a small image
        lines = np.repeat(np.repeat(grey, fine, axis=0), fine, axis=1)
        extent = (-0.5, grey.shape[1] - 0.5, -0.5, grey.shape[0] - 0.5)
        middle = (grey.min() + grey.max()) / 2
        ax.contour(lines, [middle], extent=extent, colors="black", linewidths=0.8, alpha=0.6)
    ax.set_axis_off()
    ax.set_title("blue: positive, red: negative", fontsize=9)
    return ax


def plot_over_time(values: np.ndarray, title: str = "", ax: Axes | None = None) -> Axes:
    """Draw contributions of units over time, with a row per unit and a column per time step.

    `values` are `(time, units)`, such as `one.neurons["lstm:h"]` of a slice, or those of its input.

    Raises InvalidArgumentError if there are not two axes, or a value is not finite.
    """
    values = np.asarray(values)
    if values.ndim != 2:
        raise InvalidArgumentError(
            f"Values over time have two axes, time and units. Received: shape {values.shape}"
        )
    ax = figures.new_axes(ax)
    ax.imshow(figures.overlay(values.T), aspect="auto", interpolation="nearest")
    ax.set(xlabel="step", ylabel="unit")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_title(title or "blue: positive, red: negative", fontsize=9)
    return ax


def plot_words(values: np.ndarray, words: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw the words of a sentence: blue for positive values, red for negative ones.

    `values` are `(words,)` or longer; values after the last word are ignored.

    Raises InvalidArgumentError if there are fewer values than words, or one is not finite.
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
            color="white" if strength > 0.5 else rcParams["text.color"],
            bbox={"facecolor": (*colour, strength), "edgecolor": "none", "pad": 2.0},
        )
        left += width + gap
    ax.set_axis_off()
    return ax
