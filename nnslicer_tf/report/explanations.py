"""Explanations of single predictions, as a figure or an HTML page."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import save_figure, show_image
from nnslicer_tf.report.overlays import plot_over_image
from nnslicer_tf.report.pages import Block, Heading, Page, Picture, Table, Text
from nnslicer_tf.report.palette import MARKERS, METHODS, NEGATIVE, POSITIVE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_FEATURES = 20
_COLUMNS = 4


class CurveLike(Protocol):
    """A deletion curve: `nnslicer_tf.attributions.DeletionCurve`."""

    @property
    def shares(self) -> np.ndarray:
        """Shares of the features removed."""

    @property
    def probabilities(self) -> np.ndarray:
        """Probability of the class at each share."""

    @property
    def area(self) -> float:
        """Area under the curve."""


class ComparisonLike(Protocol):
    """Attributions by several methods: `nnslicer_tf.slicing.Comparison`."""

    @property
    def values(self) -> Mapping[str, np.ndarray]:
        """Method → attributions."""

    @property
    def curves(self) -> Mapping[str, CurveLike]:
        """Method → deletion curve."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Method → why it does not apply."""

    def to_frame(self) -> "pd.DataFrame":
        """Return a table of the areas."""


class ExplanationLike(Protocol):
    """An explanation of a sample's class: `nnslicer_tf.slicing.Explanation`."""

    @property
    def sample(self) -> np.ndarray:
        """The sample."""

    @property
    def target(self) -> int:
        """The class that is explained."""

    @property
    def probabilities(self) -> np.ndarray:
        """Probabilities of the classes."""

    @property
    def contributions(self) -> np.ndarray:
        """Contributions of the input's features."""

    @property
    def frequencies(self) -> Mapping[str, np.ndarray] | None:
        """Shares of the usual samples whose slices have each synapse."""

    @property
    def comparison(self) -> ComparisonLike | None:
        """Other methods."""

    def name(self, label: int) -> str:
        """Return the name of a class."""

    def to_frame(self) -> "pd.DataFrame":
        """Return the probabilities of the leading classes."""

    def channels(self, most: int = 3) -> "pd.DataFrame":
        """Return the channels that matter most."""

    def synapses(self, most: int = 3) -> "pd.DataFrame":
        """Return the synapses that matter most."""

    def differences(self) -> "pd.DataFrame":
        """Return how the slice differs from usual ones."""

    def summary(self) -> str:
        """Return the explanation as text."""


def explanation_figure(one: ExplanationLike) -> "Figure":
    """Return a figure: sample, signed contributions, magnitudes, probabilities; other methods."""
    from matplotlib.figure import Figure

    maps = {} if one.comparison is None else dict(list(one.comparison.values.items())[1:])
    panels = len(maps) + 2 if maps else 0  # two for the curves and their legend
    rows = 1 + -(-panels // _COLUMNS)
    figure = Figure(figsize=(3.1 * _COLUMNS, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False)
    _draw_sample(one.sample, axes[0, 0])
    axes[0, 0].set_title(f"why {one.name(one.target)}?", fontsize=10)
    _draw_values(one.contributions, one.sample, axes[0, 1])
    axes[0, 1].set_title("slice: contributions\nblue for, red against", fontsize=9)
    _draw_magnitudes(one.contributions, axes[0, 2])
    axes[0, 2].set_title("magnitude of contributions", fontsize=9)
    _draw_probabilities(one.to_frame(), axes[0, 3])
    rest = list(axes[1:].flat)
    for (name, values), axis in zip(maps.items(), rest, strict=False):
        _draw_values(values, one.sample, axis)
        axis.set_title(name, fontsize=9)
    if one.comparison is not None and maps:
        _draw_curves(one.comparison.curves, rest[len(maps)], rest[len(maps) + 1])
    for axis in rest[panels:]:
        axis.set_axis_off()
    return figure


def save_explanation(one: ExplanationLike, path: Path) -> None:
    """Write a page (.html) or a picture (.png, .pdf, .svg).

    Raises:
        InvalidArgumentError: if the file has a different ending, or cannot be written.
    """
    if path.suffix in (".png", ".pdf", ".svg"):
        save_figure(explanation_figure(one), path)
    elif path.suffix == ".html":
        page = Page(f"Why {one.name(one.target)}?")
        with tempfile.TemporaryDirectory() as folder:
            page.add(*_blocks(one, Path(folder)))
            text = page.html(folder)
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    else:
        raise InvalidArgumentError(
            f"An explanation is written as .html, .png, .pdf or .svg. Received: '{path}'"
        )


def explanation_html(one: ExplanationLike) -> str:
    """Return an explanation as an HTML fragment for a notebook."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return "\n".join(block.html(folder) for block in _blocks(one, folder))


def _blocks(one: ExplanationLike, folder: Path) -> list[Block]:
    """Return the blocks of a page; the picture is written to a folder."""
    picture = folder / "explanation.png"
    save_figure(explanation_figure(one), picture)
    blocks: list[Block] = [Text(line) for line in one.summary().splitlines()]
    blocks.append(Picture(picture, "Contributions of the input's features"))
    blocks += [Heading("What is left"), Table(one.to_frame(), "Probabilities of the classes")]
    if one.frequencies is not None:
        blocks += [
            Heading("Difference from usual slices"),
            Table(one.differences(), "Synapses, for each layer"),
        ]
    blocks += [
        Heading("What matters most"),
        Table(one.channels(), "Channels, from the output to the input", longest=40),
        Table(one.synapses(), "Synapses, from the output to the input", longest=40),
    ]
    if one.comparison is not None:
        blocks += [
            Heading("Other methods"),
            Table(one.comparison.to_frame(), "Less is better"),
            *(Text(f"{name}: {why}") for name, why in one.comparison.left_out.items()),
        ]
    return blocks


def _is_image(sample: np.ndarray) -> bool:
    return sample.ndim == 3 and sample.shape[-1] in (1, 3)


def _draw_sample(sample: np.ndarray, ax: "Axes") -> None:
    if _is_image(sample):
        show_image(ax, sample)
        ax.set_axis_off()
    elif sample.ndim == 1:
        shown = np.arange(min(len(sample), _MOST_FEATURES))
        ax.barh(shown, sample[shown], color="#8a8f98")
        ax.set(xlabel="value", ylabel="feature", yticks=shown)
        ax.invert_yaxis()
    else:
        ax.imshow(sample.reshape(len(sample), -1).T, aspect="auto", cmap="gray")


def _draw_values(values: np.ndarray, sample: np.ndarray, ax: "Axes") -> None:
    """Draw signed values: over an image, as bars of features, or as a sheet."""
    if _is_image(sample):
        plot_over_image(values, sample, ax)
        return
    if values.ndim == 1:
        shown = np.sort(np.argsort(-np.abs(values), kind="stable")[:_MOST_FEATURES])
        colours = [np.array(POSITIVE if v > 0 else NEGATIVE) / 255 for v in values[shown]]
        ax.barh(np.arange(len(shown)), values[shown], color=colours)
        ax.set_yticks(np.arange(len(shown)), shown)
        ax.invert_yaxis()
        return
    sheet = values.reshape(len(values), -1).T
    most = np.abs(sheet).max() or 1
    ax.imshow(sheet, aspect="auto", cmap="RdBu", vmin=-most, vmax=most)


def _draw_magnitudes(values: np.ndarray, ax: "Axes") -> None:
    sizes = np.abs(values)
    if sizes.ndim == 3:
        ax.imshow(sizes.sum(axis=-1), cmap="Greys")
        ax.set_axis_off()
    elif sizes.ndim == 1:
        _draw_values(sizes, sizes, ax)
    else:
        ax.imshow(sizes.reshape(len(sizes), -1).T, aspect="auto", cmap="Greys")


def _draw_probabilities(table: "pd.DataFrame", ax: "Axes") -> None:
    colours = ("#8a8f98", "#0072b2", "#e69f00")
    height = 0.26
    for i, name in enumerate(table.columns[1:]):
        places = np.arange(len(table)) + (i - 1) * height
        ax.barh(places, table[name], height, label=name, color=colours[i])
    ax.set_yticks(np.arange(len(table)), table["class"])
    ax.invert_yaxis()
    ax.set(xlabel="probability", xlim=(0, 1))
    # Above the axes, where it cannot hide a bar.
    ax.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=1, frameon=False)


def _draw_curves(curves: Mapping[str, CurveLike], ax: "Axes", beside: "Axes") -> None:
    """Draw deletion curves, and their legend on separate axes."""
    for i, (name, curve) in enumerate(curves.items()):
        ax.plot(
            curve.shares,
            curve.probabilities,
            label=f"{name} ({curve.area:.2f})",
            color=METHODS.get(name),
            marker=MARKERS.get(name),
            markevery=(i, len(curves)),  # avoids overlapping markers where curves coincide
            markersize=5,
            linewidth=1.2,
        )
    ax.set(xlabel="share of features taken away", ylabel="probability", ylim=(-0.02, 1.02))
    ax.set_title("deletion (area: less is better)", fontsize=9)
    ax.grid(alpha=0.3)
    beside.legend(*ax.get_legend_handles_labels(), loc="upper left", fontsize=8, frameon=False)
    beside.set_axis_off()
