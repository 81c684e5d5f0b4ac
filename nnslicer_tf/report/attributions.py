"""Attributions and contributions over images, tables, sentences and signals, and their curves.

Blue raises the target's score, red lowers it. Columns of a table are sorted by their attribution
and have one row in all panels; a signal is a line in front of its attributions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from nnslicer_tf._checks import counted
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import figures

MAX_COLUMNS = 20  # Number of a table's columns that are drawn
MAX_LINES = 4  # Number of a signal's channels that are drawn as lines
PANELS = 4  # Pictures in a row

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
    title: str
    usual: np.ndarray | None = None  # the input's mean over data, shown with a table's values
    columns: Sequence[str] = ()  # a table's; indices by default
    words: Sequence[str] = ()  # of a sentence; the tokens by default
    is_text: bool = False  # the entries are tokens
    labels: Sequence[str] = ()  # of a table's lines, in place of its columns and values

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


def attribution_figure(
    panels: Sequence[InputPanel],
    answers: pd.DataFrame | None = None,
    curves: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]] | None = None,
) -> Figure:
    """Return a figure of attributions, with a block for each input and one for the answers.

    `answers` is a table: a column of names, then a column of numbers for each model. `curves` maps
    title → method → (shares, answers), such as deletion curves.
    """
    heights = []
    for panel in panels:
        if panel.kind == "table":
            rows = -(-len(panel.maps) // PANELS)
            heights.append(1.2 + 0.24 * min(panel.sample.size, MAX_COLUMNS) * rows)
        elif panel.kind == "text":
            heights.append(len(panel.maps) * (0.55 + 0.25 * -(-panel.sample.size // 14)))
        else:
            heights.append(3.1 * -(-(1 + len(panel.maps)) // PANELS))
    has_answers = answers is not None or bool(curves)
    heights += [3.0] * has_answers
    figure = Figure(figsize=(3.1 * PANELS, sum(heights)), layout="constrained")
    blocks = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    draw = {"table": _draw_table, "text": _draw_text}
    for panel, block in zip(panels, blocks, strict=False):
        draw.get(panel.kind, _draw_maps)(panel, block)
    if not has_answers:
        return figure

    axes = blocks[-1].subplots(1, PANELS, squeeze=False)[0]
    free = list(axes)
    if answers is not None:
        _draw_answers(answers, free.pop(0))
    for title, of_methods in (curves or {}).items():
        ax = free.pop(0)
        for i, (name, (shares, values)) in enumerate(of_methods.items()):
            colour, marker = METHODS.get(name, (None, None))
            ax.plot(
                shares,
                values,
                label=name,
                color=colour,
                marker=marker,
                markevery=(i, len(of_methods)),  # avoids overlaps where curves coincide
                markersize=5,
                linewidth=1.2,
            )
        ax.set_xlabel("share of the features")
        ax.set_title(title, fontsize=9)
        ax.grid(alpha=0.3)
    if curves:
        handles = axes[1 if answers is not None else 0].get_legend_handles_labels()
        free[0].legend(*handles, loc="center left", fontsize=8, frameon=False)
    for axis in free:
        axis.set_axis_off()
    return figure


def _draw_table(panel: InputPanel, block: Figure | SubFigure) -> None:
    """Draw bars, with one row for each column in all panels, the largest at the top."""
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
    rows, places = -(-len(panel.maps) // PANELS), np.arange(len(shown))
    axes = block.subplots(rows, min(len(panel.maps), PANELS), squeeze=False)
    for i, (axis, (method, values)) in enumerate(zip(axes.flat, panel.maps.items(), strict=False)):
        of_shown = values.ravel()[shown]
        colours = np.where(of_shown[:, None] > 0, figures.POSITIVE, figures.NEGATIVE) / 255
        axis.barh(places, of_shown, color=colours)
        axis.axvline(0, color="black", linewidth=0.6)
        axis.set_yticks(places, labels if i % PANELS == 0 else [])
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.set_title(method, fontsize=9)
        axis.tick_params(labelsize=8)
    for axis in axes.flat[len(panel.maps) :]:
        axis.set_axis_off()
    rest = first.size - len(shown)
    more = f"; {rest} columns with smaller attributions are not shown" if rest else ""
    block.suptitle(f"{panel.title} Blue raises, red lowers it{more}.", fontsize=10)


def _draw_text(panel: InputPanel, block: Figure | SubFigure) -> None:
    """Draw the words of a sentence once for each method."""
    words = list(panel.words) or [str(int(token)) for token in panel.sample.ravel()]
    axes = block.subplots(len(panel.maps), 1, squeeze=False)[:, 0]
    for axis, (method, values) in zip(axes, panel.maps.items(), strict=True):
        plot_words(values.ravel(), words, axis)
        axis.set_title(method, fontsize=9, loc="left")
    block.suptitle(f"{panel.title} Blue raises, red lowers it.", fontsize=10)


def _draw_maps(panel: InputPanel, block: Figure | SubFigure) -> None:
    """Draw the sample, then each method over it."""
    rows = -(-(1 + len(panel.maps)) // PANELS)
    axes = list(block.subplots(rows, PANELS, squeeze=False).flat)
    sample = panel.sample
    if panel.kind == "image":
        figures.show_image(axes[0], sample)
        axes[0].set_axis_off()
    elif panel.kind == "signal":
        _draw_signal(sample, axes[0])
    else:
        axes[0].imshow(sample.reshape(len(sample), -1).T, aspect="auto", cmap="gray")
    axes[0].set_title(panel.title, fontsize=10)
    for i, (axis, (method, values)) in enumerate(zip(axes[1:], panel.maps.items(), strict=False)):
        if panel.kind == "image":
            plot_over_image(values, sample, axis)
        elif panel.kind == "signal":
            _draw_signal(sample, axis, values)
        else:
            sheet = figures.overlay(values.reshape(len(values), -1).T)
            axis.imshow(sheet, aspect="auto", interpolation="nearest")
        axis.set_title(f"{method}\nblue raises, red lowers" if not i else method, fontsize=9)
    for axis in axes[1 + len(panel.maps) :]:
        axis.set_axis_off()


def _draw_signal(sample: np.ndarray, ax: Axes, values: np.ndarray | None = None) -> None:
    """Draw a signal `(steps, channels)` over its attributions: lines, or if many, heat maps."""
    steps, channels = sample.shape
    if channels > MAX_LINES:
        sheet = sample.T if values is None else figures.overlay(values.T)
        ax.imshow(sheet, aspect="auto", cmap="gray", interpolation="nearest")
        ax.set(xlabel="step", ylabel="channel")
        return
    greys = ("#30343b", "#70757e", "#9aa0a9", "#c3c7cd")
    for c in range(channels):
        ax.plot(np.arange(steps), sample[:, c], color=greys[c], linewidth=1, label=f"channel {c}")
    if channels > 1:
        ax.legend(fontsize=7, frameon=False)
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
    if values.min() >= 0 and values.max() <= 1:
        ax.set(xlabel="probability", xlim=(0, 1))
    # Above the axes, where it cannot hide a bar.
    ax.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=1, frameon=False)


def plot_over_image(values: np.ndarray, image: np.ndarray, ax: Axes | None = None) -> Axes:
    """Draw contributions or attributions over the image that they belong to.

    Args:
        values: One value for each pixel, or for each of its channels, such as
            `one.neurons[im.input_operation]` of a slice.
        image: `(height, width)` or `(height, width, channels)`; drawn in light grey.
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
    sheet = figures.overlay(values)
    ax = figures.new_axes(ax)
    grey = image.mean(axis=-1) if image.ndim == 3 else image
    span = float(np.ptp(grey)) or 1.0
    # With half the contrast, so that the colours stand out.
    ax.imshow(grey, cmap="gray", vmin=grey.min() - span, vmax=grey.min() + span)
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
    ax.set(xlabel="step", ylabel="unit")
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
