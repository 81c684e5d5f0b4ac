"""The page docs/papers.md: which parts of the papers work, by which command, and which do not.

Rows are in `papers.toml`; commands, results and how much was measured come from the catalogue.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nnslicer_tf._checks import counted
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.catalogue import Entry, load_catalogue
from reproduction.report import status
from reproduction.settings import DATA
from reproduction.tables import matching_files

ROOT = DATA.parent
PAGE = ROOT / "docs" / "papers.md"

HEADINGS = {
    "nnslicer": "NNSlicer (Zhang et al., ESEC/FSE 2020)",
    "neusemslice": "NeuSemSlice (Zhou et al., TOSEM 2025)",
    "dflare": "DFlare and DRepair (Tian et al., TOSEM 2023)",
    "exactline": "ExactLine (Sotoudeh and Thakur, NeurIPS 2019)",
    "deepxplore": "DeepXplore (Pei et al., SOSP 2017)",
    "deepbase": "DeepBase (Sellam et al., SIGMOD 2019)",
}

_TEXT = """# Which parts of the papers work

Every capability, experiment, table and figure of the papers, {rows} in all: the command or name
that provides it here, where the result is, and whether it is complete. **{works} work**: they use
the paper's methods with as many models, seeds and images, on networks that this project trained
where the authors' are not published. For each of the others, a sentence says what is missing;
{pictures} of them are illustrations. This page does not say whether a result is as good as the
paper's: see [Results](results.md). [Downloads](downloads.md) lists what has to be downloaded.

`run ID` is short for `python apps/reproduce.py run ID`, which repeats the committed experiment
with all its options; `list` shows how long each experiment takes and what it needs.
`python apps/reproduce.py pages` writes this page from the catalogue of experiments.
"""


@dataclass(frozen=True)
class Row:
    """A capability, experiment, table or figure of a paper: see `papers.toml`."""

    at: str
    what: str
    entries: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    page: str = ""
    missing: str = ""


def load_rows() -> dict[str, list[Row]]:
    """Return the rows of each paper."""
    data = tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))
    return {
        paper: [
            Row(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
            for row in rows
        ]
        for paper, rows in data.items()
    }


def shortfall(row: Row) -> str:
    """Return what the results of a row's first entry are short of by the catalogue, or ""."""
    if not row.entries:
        return ""
    entry = load_catalogue()[row.entries[0]]
    said = status(entry, DATA / "results")
    is_complete = not entry.command or said.startswith("measured")
    return "" if is_complete else re.sub(r"^reduced \([\d-]+\): ", "", said)


def papers_page() -> str:
    """Return the page.

    Raises:
        InvalidArgumentError: if a row claims to work whose results are smaller than the paper's.
    """
    rows = load_rows()
    flat = [row for of_paper in rows.values() for row in of_paper]
    for row in flat:
        if not row.missing and (short := shortfall(row)):
            raise InvalidArgumentError(f"{row.at}, {row.what}: say what is missing; {short}.")
    pictures = sum(row.missing.startswith("An illustration") for row in flat)
    works = sum(not row.missing for row in flat)
    parts = [_TEXT.format(rows=len(flat), works=works, pictures=pictures)]
    for paper, heading in HEADINGS.items():
        complete = sum(not row.missing for row in rows[paper])
        parts.append(f"## {heading}\n\n{complete} of {counted(len(rows[paper]), 'row')} work.\n")
        lines = ["| in the paper | what | by | result | state |", "|---|---|---|---|---|"]
        for row in rows[paper]:
            by = "<br>".join(_commands(row))
            state = row.missing or "works"
            lines.append(f"| {row.at} | {row.what} | {by} | {_result(row)} | {state} |")
        parts.append("\n".join(lines) + "\n")
    named = {name for row in flat for name in row.entries}
    others = [entry for entry in load_catalogue().entries if entry.id not in named]
    parts.append("## Beyond the papers\n")
    lines = ["| what | by | result |", "|---|---|---|"]
    lines += [f"| {one.title} | `run {one.id}` | {_link(_shown(one))} |" for one in others]
    parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _commands(row: Row) -> Iterator[str]:
    """Yield what makes a row: experiments to run, then calls."""
    for name in row.entries:
        if load_catalogue()[name].command:
            yield f"`run {name}`"
    for name in row.uses:
        name = f"python {name}" if name.startswith("benchmarks/") else name
        yield f"`{name.removeprefix('nnslicer_tf.')}`"


def _shown(entry: Entry) -> Path | None:
    """Return the file that shows an entry's result: its first table as Markdown, or its picture."""
    for table in matching_files(DATA / "results", entry.tables):
        page = table.with_suffix(".md")
        return page if page.exists() else table
    return next(iter(matching_files(DATA / "results", entry.figures)), None)


def _result(row: Row) -> str:
    if row.page:
        return _link(ROOT / row.page)
    return _link(_shown(load_catalogue()[row.entries[0]])) if row.entries else ""


def _link(path: Path | None) -> str:
    if path is None:
        return ""
    name = f"{path.parent.name}/{path.name}" if path.stem == "README" else path.name
    return f"[{name}]({Path(os.path.relpath(path, PAGE.parent)).as_posix()})"
