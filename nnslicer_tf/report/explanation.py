"""The page and the picture of an `Explanation`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.data import columns_of
from nnslicer_tf.report.attributions import (
    WIDTH,
    Cell,
    InputPanel,
    answer_cell,
    cell_bytes,
    cell_figure,
    curve_cell,
    panel_cells,
)
from nnslicer_tf.report.figures import save_figure
from nnslicer_tf.report.pages import Heading, Page, Picture, Table, Text

_METHODS = {
    "amounts": "Contributions are DeepLIFT's, averaged over other samples as the reference.",
    "Shapley values": "Shapley values: what a feature adds, on average over orders of features.",
}


def explanation_figure(one: Any) -> Figure:
    """Return a figure: the sample with its contributions, other methods, and the answers."""
    first, others = _cells(one)
    return cell_figure([*first, *others], f"why {one.question}? Blue raises, red lowers it.")


def _cells(one: Any) -> tuple[list[Cell], list[Cell]]:
    """Return the cells of the sample, its contributions and answers, and of other methods."""
    own = "contributions" if one.own_method == "amounts" else one.own_method
    score = f"the score of {one.question}"
    maps, curves = {own: one.contributions}, []
    if one.comparison is not None:
        maps |= {n: v for n, v in one.comparison.values.items() if n != one.own_method}
        answer = one.question if one.target.label is None else f"probability of {one.question}"
        # The own method, the two best ones, and a random order, which comes last.
        best = one.comparison.to_frame()["method"][:2]
        chosen = dict.fromkeys([one.own_method, *best, list(one.comparison.deletion)[-1]])
        both = {"hidden": one.comparison.deletion, "shown": one.comparison.insertion}
        for verb, of_methods in both.items():
            drawn = {n: (of_methods[n].shares, of_methods[n].answers) for n in chosen}
            drawn = {own if n == one.own_method else n: curve for n, curve in drawn.items()}
            curves.append(curve_cell(drawn, verb, answer))
    if one.background is not None and one.background.names:
        # A table: a column, or a group of columns, in each line.
        labels, by_feature = one.background.to_frame().sort_index(), {}
        for method, values in maps.items():
            parts = [values[n] for n in one.sample] if isinstance(one.sample, Mapping) else [values]
            flat = np.concatenate(list(map(np.ravel, parts)))
            by_feature[method] = np.bincount(one.background.features, weights=flat)
        named = [f"{n} = {value}" for n, value in zip(labels.feature, labels.value, strict=True)]
        panels = [InputPanel(one.background.values, by_feature, "", labels=named, score=score)]
    else:
        inputs = one.sample if isinstance(one.sample, Mapping) else {"": one.sample}
        panels = []
        for name, sample in inputs.items():
            of_input = {m: v[name] if name else v for m, v in maps.items()}
            operation = name or next(iter(one.means))
            tokens = np.ravel(sample) if operation in one.token_inputs and sample.ndim < 2 else ()
            words = list(one.words if len(tokens) else ()) or [str(int(t)) for t in tokens]
            title = f"{name}: " if name else ""
            known = columns_of(one.columns, name) if name else one.columns
            columns = known if len(known) == np.size(sample) else range(np.size(sample))
            values = zip(columns, np.ravel(sample), one.means[operation].ravel(), strict=False)
            labels = [f"{c} = {v:.3g} (mean {m:.3g})" for c, v, m in values if np.ndim(sample) == 1]
            panels.append(InputPanel(sample, of_input, title, words, labels, score))
    first, others = [], curves
    for cells, rest in map(panel_cells, panels):
        first += cells
        others += rest
    return [*first, _answers(one)], others


def _answers(one: Any) -> Cell:
    """Return the cell of the answers with a slice and without it: the decisive one, if any."""
    found = one.decisive if one.contrast is None else one.contrast
    rows: dict[str, tuple[float, str]] = {}
    if found is None:
        name, *values = one.to_frame().iloc[0]
        for title, value in zip(one.to_frame().columns[1:], values, strict=True):
            rows[title] = value, f"{value:.4g}" if one.target.label is None else f"{value:.1%}"
        what = "value" if one.target.label is None else f"probability of {name}"
        share = (one.slice.to_vector() != 0).mean()
        return answer_cell(rows, what, f"slice by counts: {share:.1%} of the synapses")

    row = {name: column[0] for name, column in found.certificate.items()}
    number, classes = found.info["number"], found.info["kind"] == "class"

    def named(answer: Any) -> str:
        if one.contrast is not None:
            return str(one.question.split(" rather than ")[0 if answer else 1])
        label = int(answer) if classes else found.info["names"][0]
        return ("" if answer or classes else "not ") + one.name(label)

    def bar(answer: Any, value: float) -> tuple[float, str]:
        if number:
            return float(answer), f"{answer:.4g}"
        other = "" if answer == row["answer"] else f"{named(row['answer'])}: "
        return value, f"answers {named(answer)} ({other}{value:.1%})"

    for title, which in (("whole model", ""), ("only these", "alone"), ("without them", "removed")):
        which = which and f" with slice {which}"
        rows[title] = bar(row[f"answer{which}"], row[f"probability{which}"])
    rows["all averaged"] = bar(row["empty answer"], row["probability with nothing active"])
    against = "" if one.contrast is None else f" rather than {named(1 - row['answer'])}"
    what = "value" if number else f"probability of {named(row['answer'])}{against}"
    title = f"{row['size']:,} synapses ({row['share']:.1%}), others at their mean"
    return answer_cell(rows, what, title)


def save_explanation(one: Any, path: str | os.PathLike) -> None:
    """Write a page (.html) or a picture (.png, .pdf, .svg); reject other endings."""
    path = Path(path)
    if path.suffix in (".png", ".pdf", ".svg"):
        save_figure(explanation_figure(one), path)
    elif path.suffix == ".html":
        text = Page(f"Why {one.question}?", _blocks(one, "svg")).html(path.parent)
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    else:
        raise InvalidArgumentError(f"Files end in .html, .png, .pdf or .svg. Received: '{path}'")


def explanation_html(one: Any) -> str:
    """Return an explanation as HTML, for notebooks."""
    return "\n".join(block.html(Path()) for block in _blocks(one, "png"))


def _blocks(one: Any, kind: str) -> list[Any]:
    """Return the blocks of a page, with pictures of a kind."""
    answer, *rest = map(Text, one.summary().splitlines())
    first, others = _cells(one)
    blocks: list[Any] = [
        answer,
        *_pictures(first, kind),
        Text(f"Blue raises the score of {one.question}, red lowers it. {_METHODS[one.own_method]}"),
        *rest,
    ]
    if one.background is not None and one.background.names:
        title = f"Contributions against {len(one.background.by_row)} background rows"
        blocks.append(Table(one.background.to_frame(), title))
    slices = {one.question: one.contrast, "the answer": one.decisive}
    certificates = {name: d.to_frame() for name, d in slices.items() if d is not None}
    blocks.append(Heading("What is left"))
    if not certificates:
        blocks.append(Table(one.to_frame(), "Answers with the slice by counts, and without it"))
    else:
        frame = pd.concat(certificates, names=["decisive slice for"]).drop(columns="sample")
        certificate = frame.droplevel(1).T.rename_axis("certificate").reset_index()
        blocks.append(Table(certificate, "Certificates of decisive slices", longest=12))
    if one.frequencies is not None:
        blocks.append(Heading("Difference from usual slices"))
        blocks.append(Table(one.differences(), "Synapses, for each layer"))
    blocks += [
        Heading("What matters most"),
        Table(one.channels(), "Channels, from the output to the input", longest=40),
        Table(one.synapses(), "Synapses, from the output to the input", longest=40),
    ]
    if one.comparison is not None:
        blocks += [
            Heading("Other methods"),
            *_pictures(others, kind),
            Table(one.comparison.to_frame(), "Areas under the curves"),
            *(Text(f"{name}: {why}") for name, why in one.comparison.left_out.items()),
        ]
    return blocks


def _pictures(cells: Sequence[Cell], kind: str) -> list[Picture]:
    """Return a picture of each cell, as wide as a phone at most."""
    return [Picture(cell_bytes(cell, kind), cell.caption, round(100 * WIDTH)) for cell in cells]
