"""The headline results of ExactLine."""

from collections.abc import Iterator

import pandas as pd

from reproduction.headlines.headline import Headline, Part, Tables
from reproduction.result import paper_frame


def _lines(tables: Tables) -> Iterator[Headline]:
    """Return errors and savings of approximate integrated gradients."""
    frame = tables["exactline/attributions"].frame
    frame = frame[frame["network"].str.contains("cifar10")]
    paper = paper_frame("exactline/table1")["error_percent"]
    errors = frame["error_percent_at_m_tilde"]
    what = "Integrated gradients, CIFAR-10: error of m̃ samples"
    here = f"{errors.min():.0f} … {errors.max():.0f} %"
    published = f"{paper.min():.0f} … {paper.max():.0f} %"
    yield Headline(what, "range over the networks", here, published, None, "exactline/table1")
    saving = tables["exactline/attributions"].frame["saving_of_trapezoid_percent"]
    what = "Integrated gradients: samples saved by trapezoid rule over left sum"
    here = f"{saving.min():.0f} … {saving.max():.0f} %"
    yield Headline(what, "range over the networks", here, "20 … 40 %", None, "exactline/table2")


def _lines_by_program(tables: Tables) -> Iterator[Headline]:
    """Return the same by the procedure of the paper's program, for networks of its shapes."""
    names = ("exactline/program_attributions", "exactline/convbig/program_attributions")
    frame = pd.concat([tables[name].frame for name in names])
    frame = frame[(frame["dataset"] == "cifar10") & (frame["training"] == "normal")]
    paper = paper_frame("exactline/table1").set_index("network")["error_percent"]
    for row in frame.itertuples():
        what = "Integrated gradients, CIFAR-10: error of m̃ samples, by the paper's program"
        here, published = f"{row.error_percent_at_m_tilde:.0f} %", f"{paper[row.network]:.0f} %"
        yield Headline(what, row.network, here, published, None, "exactline/table1-program")


def _density(tables: Tables) -> Iterator[Headline]:
    frame = tables["exactline/linearity_directions"].frame
    ours = frame[(frame["dataset"] == "mnist") & (frame["images"] == "right")]
    ours = ours.set_index("training")["median"]
    paper = paper_frame("exactline/table3").set_index("training")["median"]
    what = "Density of affine parts, FGSM / random neighbours: median, MNIST"
    published = f"{paper['normal']:.2f}"
    yield Headline(
        what, "trained normally", f"{ours['normal']:.2f}", published, None, "exactline/table3"
    )


PARTS: tuple[Part, ...] = (
    _lines,
    _lines_by_program,
    _density,
)
"""All parts, in their order."""
