"""Pictures of attributions over images, tables, sentences and signals; of their curves.

Blue raises the score of the target, red lowers it. Columns of a table are sorted by their
attribution and have one row in all panels; a signal is a line in front of its attributions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.report.figures import show_image
from nnslicer_tf.report.overlays import overlay, plot_over_image
from nnslicer_tf.report.palette import MARKERS, METHODS, NEGATIVE, POSITIVE
from nnslicer_tf.report.words import plot_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MAX_COLUMNS = 20
"""Number of a table's columns that are drawn."""

_PANELS = 4  # in a row
_MAX_LINES = 4  # channels of a signal that are drawn as lines
_GREYS = ("#30343b", "#70757e", "#9aa0a9", "#c3c7cd")


@dataclass(frozen=True, eq=False)
class InputPanel:
    """One input of a sample, with the attributions of several methods.

    Attributes:
        sample: The input.
        maps: Method → attributions, of the input's shape; the first one decides the order.
        title: Title of the picture of the sample.
        usual: The input's mean over data, shown with the values of a table; None if not known.
        columns: Names of a table's columns; indices by default.
        words: The words of a sentence of tokens; the tokens by default.
        is_text: Whether the entries are tokens.
    """

    sample: np.ndarray
    maps: Mapping[str, np.ndarray]
    title: str
    usual: np.ndarray | None = None
    columns: Sequence[str] = ()
    words: Sequence[str] = ()
    is_text: bool = False

    @property
    def kind(self) -> str:
        """Whether it is "text", a "table", an "image", a "signal" or another "array"."""
        shape = self.sample.shape
        if self.is_text:
            return "text" if len(shape) == 1 else "array"
        if len(shape) < 2:
            return "table"
        if len(shape) == 3 and shape[-1] in (1, 3):
            return "image"
        return "signal" if len(shape) == 2 else "array"


def attribution_figure(
    panels: Sequence[InputPanel],
    answers: "pd.DataFrame | None" = None,
    curves: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]] | None = None,
) -> "Figure":
    """Return a figure of attributions, with a block for each input and one for the answers.

    Args:
        panels: The inputs.
        answers: Table of answers: a column of names, then a column of numbers for each model.
        curves: Title → method → (shares, answers), such as deletion curves.
    """
    from matplotlib.figure import Figure

    last = 1 if answers is not None or curves else 0
    heights = [_height(panel) for panel in panels] + [3.0] * last
    figure = Figure(figsize=(3.1 * _PANELS, sum(heights)), layout="constrained")
    blocks = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    draw = {"table": _draw_table, "text": _draw_text}
    for panel, block in zip(panels, blocks, strict=False):
        draw.get(panel.kind, _draw_maps)(panel, block)
    if last:
        axes = blocks[-1].subplots(1, _PANELS, squeeze=False)[0]
        free = list(axes)
        if answers is not None:
            _draw_answers(answers, free.pop(0))
        for title, of_methods in (curves or {}).items():
            _draw_curves(of_methods, title, free.pop(0))
        if curves:
            handles = axes[1 if answers is not None else 0].get_legend_handles_labels()
            free[0].legend(*handles, loc="center left", fontsize=8, frameon=False)
        for axis in free:
            axis.set_axis_off()
    return figure


def _height(panel: InputPanel) -> float:
    if panel.kind == "table":
        return 1.2 + 0.24 * min(panel.sample.size, MAX_COLUMNS) * -(-len(panel.maps) // _PANELS)
    if panel.kind == "text":
        return len(panel.maps) * (0.55 + 0.25 * -(-panel.sample.size // 14))
    return 3.1 * -(-(1 + len(panel.maps)) // _PANELS)


def _draw_table(panel: InputPanel, block: "Figure | SubFigure") -> None:
    """Draw bars, with one row for each column in all panels, the largest at the top."""
    first = next(iter(panel.maps.values())).ravel()
    shown = np.argsort(-np.abs(first), kind="stable")[:MAX_COLUMNS]
    rows, places = -(-len(panel.maps) // _PANELS), np.arange(len(shown))
    axes = block.subplots(rows, min(len(panel.maps), _PANELS), squeeze=False)
    for i, (axis, (method, values)) in enumerate(zip(axes.flat, panel.maps.items(), strict=False)):
        of_shown = values.ravel()[shown]
        axis.barh(places, of_shown, color=[_colour(v) for v in of_shown])
        axis.axvline(0, color="black", linewidth=0.6)
        axis.set_yticks(places, [_row_label(panel, k) for k in shown] if i % _PANELS == 0 else [])
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.set_title(method, fontsize=9)
        axis.tick_params(labelsize=8)
    for axis in axes.flat[len(panel.maps) :]:
        axis.set_axis_off()
    rest = first.size - len(shown)
    more = f"; {rest} columns with smaller attributions are not shown" if rest else ""
    block.suptitle(f"{panel.title} Blue raises, red lowers it{more}.", fontsize=10)


def _row_label(panel: InputPanel, k: int) -> str:
    name = panel.columns[k] if len(panel.columns) else str(k)
    usual = "" if panel.usual is None else f" (mean {panel.usual.ravel()[k]:.3g})"
    return f"{name} = {panel.sample.ravel()[k]:.3g}{usual}"


def _draw_text(panel: InputPanel, block: "Figure | SubFigure") -> None:
    """Draw the words of a sentence once for each method."""
    words = list(panel.words) or [str(int(token)) for token in panel.sample]
    axes = block.subplots(len(panel.maps), 1, squeeze=False)[:, 0]
    for axis, (method, values) in zip(axes, panel.maps.items(), strict=True):
        plot_words(values, words, axis)
        axis.set_title(method, fontsize=9, loc="left")
    block.suptitle(f"{panel.title} Blue raises, red lowers it.", fontsize=10)


def _draw_maps(panel: InputPanel, block: "Figure | SubFigure") -> None:
    """Draw the sample, then each method over it."""
    rows = -(-(1 + len(panel.maps)) // _PANELS)
    axes = list(block.subplots(rows, _PANELS, squeeze=False).flat)
    _draw_sample(panel, axes[0])
    axes[0].set_title(panel.title, fontsize=10)
    for i, (axis, (method, values)) in enumerate(zip(axes[1:], panel.maps.items(), strict=False)):
        if panel.kind == "image":
            plot_over_image(values, panel.sample, axis)
        elif panel.kind == "signal":
            _draw_signal(panel.sample, axis, values)
        else:
            sheet = overlay(values.reshape(len(values), -1).T)
            axis.imshow(sheet, aspect="auto", interpolation="nearest")
        axis.set_title(f"{method}\nblue raises, red lowers" if not i else method, fontsize=9)
    for axis in axes[1 + len(panel.maps) :]:
        axis.set_axis_off()


def _draw_sample(panel: InputPanel, ax: "Axes") -> None:
    if panel.kind == "image":
        show_image(ax, panel.sample)
        ax.set_axis_off()
    elif panel.kind == "signal":
        _draw_signal(panel.sample, ax)
    else:
        ax.imshow(panel.sample.reshape(len(panel.sample), -1).T, aspect="auto", cmap="gray")


def _draw_signal(sample: np.ndarray, ax: "Axes", values: np.ndarray | None = None) -> None:
    """Draw a signal `(steps, channels)` as lines, in front of its attributions as colours.

    With many channels, both are sheets with a row for each channel.
    """
    steps, channels = sample.shape
    if channels > _MAX_LINES:
        if values is None:
            ax.imshow(sample.T, aspect="auto", cmap="gray", interpolation="nearest")
        else:
            ax.imshow(overlay(values.T), aspect="auto", interpolation="nearest")
        ax.set(xlabel="step", ylabel="channel")
        return
    for c in range(channels):
        ax.plot(np.arange(steps), sample[:, c], color=_GREYS[c], linewidth=1, label=f"channel {c}")
    if channels > 1:
        ax.legend(fontsize=7, frameon=False)
    if values is not None:
        bottom, top = ax.get_ylim()
        ax.imshow(
            overlay(values.sum(axis=1)[None]),
            extent=(-0.5, steps - 0.5, bottom, top),
            aspect="auto",
            interpolation="nearest",
            zorder=0,
        )
        ax.set_ylim(bottom, top)
    ax.set_xlim(-0.5, steps - 0.5)
    ax.set_xlabel("step")


def _draw_answers(table: "pd.DataFrame", ax: "Axes") -> None:
    colours, height = ("#8a8f98", "#0072b2", "#e69f00"), 0.26
    for i, name in enumerate(table.columns[1:]):
        places = np.arange(len(table)) + (i - 1) * height
        ax.barh(places, table[name], height, label=name, color=colours[i])
    ax.set_yticks(np.arange(len(table)), table.iloc[:, 0])
    ax.invert_yaxis()
    values = table.iloc[:, 1:].to_numpy()
    if values.min() >= 0 and values.max() <= 1:
        ax.set(xlabel="probability", xlim=(0, 1))
    # Above the axes, where it cannot hide a bar.
    ax.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=1, frameon=False)


def _draw_curves(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], title: str, ax: "Axes"
) -> None:
    for i, (name, (shares, answers)) in enumerate(curves.items()):
        ax.plot(
            shares,
            answers,
            label=name,
            color=METHODS.get(name),
            marker=MARKERS.get(name),
            markevery=(i, len(curves)),  # avoids overlapping markers where curves coincide
            markersize=5,
            linewidth=1.2,
        )
    ax.set_xlabel("share of the features")
    ax.set_title(title, fontsize=9)
    ax.grid(alpha=0.3)


def _colour(value: float) -> np.ndarray:
    return np.array(POSITIVE if value > 0 else NEGATIVE) / 255
