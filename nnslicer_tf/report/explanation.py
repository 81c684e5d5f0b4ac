"""The page and the picture of an `Explanation`."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.attributions import (
    WIDTH,
    Cell,
    InputPanel,
    answer_cell,
    cell_figure,
    curve_cell,
    panel_cells,
    save_cell,
)
from nnslicer_tf.report.figures import save_figure
from nnslicer_tf.report.pages import Heading, Page, Picture, Table, Text


def explanation_figure(one: Any) -> Figure:
    """Return a figure: the sample with its contributions, other methods, and the answers."""
    first, others = _cells(one)
    return cell_figure([*first, *others], f"why {one.question}? Blue raises, red lowers it.")


def _cells(one: Any) -> tuple[list[Cell], list[Cell]]:
    """Return the cells of the sample, its contributions and answers, and of other methods."""
    maps, curves = {one.own_method: one.contributions}, []
    if one.comparison is not None:
        maps = dict(one.comparison.values)
        answer = one.question if one.target.label is None else f"probability of {one.question}"
        # The own method, the two best ones, and a random order, which comes last.
        best = one.comparison.to_frame()["method"][:2]
        chosen = dict.fromkeys([one.own_method, *best, list(one.comparison.deletion)[-1]])
        for verb, of_methods in (
            ("hidden", one.comparison.deletion),
            ("shown", one.comparison.insertion),
        ):
            drawn = {n: (of_methods[n].shares, of_methods[n].answers) for n in chosen}
            curves.append(curve_cell(drawn, verb, answer))
    if one.background is not None and one.background.names:  # a table, whose columns have groups
        panels = [_table_panel(one, maps)]
    else:
        inputs = one.sample if isinstance(one.sample, Mapping) else {"": one.sample}
        panels = []
        for name, sample in inputs.items():
            of_input = {m: v[name] if name else v for m, v in maps.items()}
            operation = name or next(iter(one.means))
            columns = one.columns if len(one.columns) == np.size(sample) else ()
            tokens = np.ravel(sample) if operation in one.token_inputs and sample.ndim < 2 else ()
            words = list(one.words if len(tokens) else ()) or [str(int(t)) for t in tokens]
            title = f"{name}: " if name else ""
            panels.append(InputPanel(sample, of_input, title, one.means[operation], columns, words))
    first, others = [], curves
    for cells, rest in map(panel_cells, panels):
        first += cells
        others += rest
    return [*first, answer_cell(one.to_frame().set_index("answer"))], others


def _table_panel(one: Any, maps: Mapping[str, Any]) -> InputPanel:
    """Return the panel of a table's features: a column, or a group of columns, in each line."""
    background = one.background
    labels = background.to_frame().sort_index()
    by_feature = {
        method: np.bincount(
            background.features,
            weights=np.concatenate(
                [np.ravel(values[n]) for n in one.sample]
                if isinstance(one.sample, Mapping)
                else [np.ravel(values)]
            ),
        )
        for method, values in maps.items()
    }
    names = [f"{name} = {value}" for name, value in zip(labels.feature, labels.value, strict=True)]
    return InputPanel(background.values, by_feature, "", labels=names)


def save_explanation(one: Any, path: str | os.PathLike) -> None:
    """Write a page (.html) or a picture (.png, .pdf, .svg); reject other endings."""
    path = Path(path)
    if path.suffix in (".png", ".pdf", ".svg"):
        save_figure(explanation_figure(one), path)
    elif path.suffix == ".html":
        with tempfile.TemporaryDirectory() as folder:
            page = Page(f"Why {one.question}?", _blocks(one, Path(folder)))
            text = page.html(folder)
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    else:
        raise InvalidArgumentError(
            f"An explanation is written as .html, .png, .pdf or .svg. Received: '{path}'"
        )


def explanation_html(one: Any) -> str:
    """Return an explanation as HTML, for notebooks."""
    with tempfile.TemporaryDirectory() as folder:
        return "\n".join(block.html(Path(folder)) for block in _blocks(one, Path(folder)))


def _blocks(one: Any, folder: Path) -> list[Any]:
    """Return the blocks of a page; the pictures are written to a folder."""
    answer, *rest = map(Text, one.summary().splitlines())
    first, others = _cells(one)
    blocks: list[Any] = [
        answer,
        *_pictures(first, folder, "first"),
        Text("Blue features raise the answer's score, red ones lower it."),
    ]
    blocks += rest
    if one.background is not None and one.background.names:
        title = f"Contributions against {len(one.background.by_row)} background rows"
        blocks.append(Table(one.background.to_frame(), title))
    blocks += [Heading("What is left"), Table(one.to_frame(), "Answers")]
    slices = {one.question: one.contrast, "the answer": one.decisive}
    certificates = {name: d.to_frame() for name, d in slices.items() if d is not None}
    if certificates:
        frame = pd.concat(certificates, names=["decisive slice for"]).drop(columns="sample")
        certificate = frame.droplevel(1).T.rename_axis("certificate").reset_index()
        blocks.append(Table(certificate, "Certificates of decisive slices", longest=12))
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
            *_pictures(others, folder, "other"),
            Table(one.comparison.to_frame(), "Areas under the curves"),
            *(Text(f"{name}: {why}") for name, why in one.comparison.left_out.items()),
        ]
    return blocks


def _pictures(cells: Sequence[Cell], folder: Path, name: str) -> list[Picture]:
    """Return a picture of each cell, as wide as a phone at most; written to a folder."""
    paths = [folder / f"{name}{i}.png" for i in range(len(cells))]
    for cell, path in zip(cells, paths, strict=True):
        save_cell(cell, path)
    width = round(100 * WIDTH)
    return [Picture(path, cell.caption, width) for cell, path in zip(cells, paths, strict=True)]
