"""The page and the picture of an `Explanation`."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.attributions import InputPanel, attribution_figure
from nnslicer_tf.report.figures import save_figure
from nnslicer_tf.report.pages import Heading, Page, Picture, Table, Text


def explanation_figure(one: Any) -> Figure:
    """Return a figure: the sample with its contributions, other methods, and the answers."""
    maps = {one.own_method: one.contributions}
    curves = {}
    if one.comparison is not None:
        maps = dict(one.comparison.values)
        curves = {
            f"{title}\n(area: {better} is better)": {
                n: (c.shares, c.answers) for n, c in of_methods.items()
            }
            for title, better, of_methods in (
                ("hidden, largest first", "less", one.comparison.deletion),
                ("shown, largest first", "more", one.comparison.insertion),
            )
        }
    if one.background is not None and one.background.names:  # a table, whose columns have groups
        return attribution_figure([_table_panel(one, maps)], one.to_frame(), curves)
    inputs = one.sample if isinstance(one.sample, Mapping) else {"": one.sample}
    panels = []
    for name, sample in inputs.items():
        of_input = {m: v[name] if name else v for m, v in maps.items()}
        usual = one.means.get(name or next(iter(one.means)))
        title = f"why {one.question}?" + (f" ({name})" if name else "")
        is_text = (name or next(iter(one.means))) in one.token_inputs
        panels.append(
            InputPanel(
                sample,
                of_input,
                title,
                usual,
                one.columns if len(one.columns) == np.size(sample) else (),
                one.words if is_text else (),
                is_text,
            )
        )
    return attribution_figure(panels, one.to_frame(), curves)


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
    return InputPanel(background.values, by_feature, f"why {one.question}?", labels=names)


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
    """Return the blocks of a page; the picture is written to a folder."""
    picture = folder / "explanation.png"
    save_figure(explanation_figure(one), picture)
    blocks: list[Any] = [Text(line) for line in one.summary().splitlines()]
    blocks.append(Picture(picture, "Contributions of the input's features"))
    if one.background is not None and one.background.names:
        title = f"Contributions against {len(one.background.by_row)} background rows"
        blocks.append(Table(one.background.to_frame(), title))
    blocks += [Heading("What is left"), Table(one.to_frame(), "Answers")]
    slices = {one.question: one.contrast, "the answer": one.decisive}
    certificates = {name: d.to_frame() for name, d in slices.items() if d is not None}
    if certificates:
        frame = pd.concat(certificates, names=["decisive slice for"]).drop(columns="sample")
        certificate = frame.droplevel(1).T.rename_axis("certificate").reset_index()
        blocks.append(Table(certificate, "", longest=40))
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
            Table(one.comparison.to_frame(), "Areas under the curves"),
            *(Text(f"{name}: {why}") for name, why in one.comparison.left_out.items()),
        ]
    return blocks
