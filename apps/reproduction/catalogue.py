"""The catalogue of the papers' tables and figures, and how far each was measured."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.result_tables import ResultTable


@dataclass(frozen=True)
class Extent:
    """The extent of a measurement, compared with the paper's.

    Attributes:
        count: What is counted, a key of `COUNTS`.
        of: The paper's number.
        unit: What the numbers count.
        column: The column to read.
        but: A value of the column that is not counted.
        head: The key of the tables' head to read.
        pattern: A regular expression for the head's value, whose group is the number, or for the
            files' names.
    """

    count: str
    of: int
    unit: str
    column: str = ""
    but: str = ""
    head: str = ""
    pattern: str = r"([\d,]+)"

    def measured(self, tables: Sequence[ResultTable]) -> int:
        """Return the number measured in some tables."""
        return COUNTS[self.count](self, tables)


@dataclass(frozen=True)
class Entry:
    """A table or a figure.

    Attributes:
        id: `paper/name`.
        title: Its title.
        command: The command that makes it, without `python`; empty if there is none.
        minutes: Expected minutes on two cores.
        needs: Data sets and files that the command needs.
        tables: Patterns of our result tables; files of single runs are excluded.
        figures: Patterns of our figures.
        more: Patterns of further files to link.
        paper: The papers' tables.
        extents: The extents to compare with the paper's.
        without: Why there is no command.
        view: Columns that become the rows, columns and values of a summary above the tables.
        trial: Arguments added to the command for a trial; `{folder}` is its folder.
    """

    id: str
    title: str
    command: str = ""
    minutes: int = 0
    needs: str = ""
    tables: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    paper: tuple[str, ...] = ()
    extents: tuple[Extent, ...] = ()
    without: str = ""
    view: tuple[str, ...] = ()
    trial: str = "--quick --results {folder}"

    @property
    def part(self) -> str:
        """The key of `Catalogue.papers`."""
        return self.id.partition("/")[0]


@dataclass(frozen=True)
class Catalogue:
    """Every table and figure.

    Attributes:
        papers: Part of an id → heading in the report, in order.
        entries: The tables and figures, in the papers' order.
        headlines: Descriptions of the headline results, see `headlines`.
        chosen: The headlines of docs/results.md, see `report`.
        redraw: Patterns of files from which figures are redrawn, see `redraw`.
    """

    papers: dict[str, str]
    entries: tuple[Entry, ...]
    headlines: tuple[dict[str, Any], ...]
    chosen: tuple[dict[str, Any], ...]
    redraw: dict[str, list]

    def __getitem__(self, name: str) -> Entry:
        """Return the entry with an id.

        Raises:
            InvalidArgumentError: for an unknown id.
        """
        entries = {entry.id: entry for entry in self.entries}
        if name not in entries:
            raise InvalidArgumentError(f"There is no '{name}'. Choose one of: {', '.join(entries)}")
        return entries[name]


@cache
def load_catalogue() -> Catalogue:
    """Return the catalogue, read from `catalogue.toml`."""
    text = Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    lists = (tuple(data[name]) for name in ("headlines", "chosen"))
    return Catalogue(data["papers"], tuple(map(_entry, data["entries"])), *lists, data["redraw"])


def _entry(fields: dict) -> Entry:
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    extents = tuple(Extent(**extent) for extent in fields.pop("extents", ()))
    return Entry(**fields, extents=extents)


def _distinct(extent: Extent, tables: Sequence[ResultTable]) -> int:
    columns = [t.frame[extent.column] for t in tables if extent.column in t.frame]
    return len({value for column in columns for value in column.dropna()} - {extent.but})


def _largest(extent: Extent, tables: Sequence[ResultTable]) -> int:
    columns = [t.frame[extent.column] for t in tables if extent.column in t.frame]
    return max((int(column.max()) for column in columns), default=0)


def _smallest(extent: Extent, tables: Sequence[ResultTable]) -> int:
    columns = [t.frame[extent.column] for t in tables if extent.column in t.frame]
    return min((int(column.min()) for column in columns), default=0)


def _named(extent: Extent, tables: Sequence[ResultTable]) -> int:
    """Count the files whose names match the pattern."""
    return sum(bool(re.search(extent.pattern, table.path.stem)) for table in tables)


def _seeds(extent: Extent, tables: Sequence[ResultTable]) -> int:
    """Count the seeds `0 … n` in the head of the tables."""
    found = [re.search(r"0 … (\d+)", table.head.get("seeds", "")) for table in tables]
    return max((int(match[1]) + 1 for match in found if match), default=0)


def _sets_at_ratios(extent: Extent, tables: Sequence[ResultTable]) -> int:
    """Count sets of target classes at each prune ratio.

    Of tables that share a ratio, the one with the most sets counts, as it includes the others'.
    """
    of_sets = Extent("stated", extent.of, extent.unit, head="sets")
    most: dict[float, int] = {}
    for table in tables:
        for ratio in table.frame.get("ratio", ()):
            most[ratio] = max(most.get(ratio, 0), of_sets.measured([table]))
    return sum(most.values())


def _settings(extent: Extent, tables: Sequence[ResultTable]) -> int:
    """Count the models and data sets in the files' names."""
    stems = [re.sub(r"(-interval\d+)?(-tests)?$", "", table.path.stem) for table in tables]
    return len({tuple(stem.split("-")[-2:]) for stem in stems})


def _stated(extent: Extent, tables: Sequence[ResultTable]) -> int:
    """Read the number from the head of the tables."""
    found = [re.search(extent.pattern, table.head.get(extent.head, "")) for table in tables]
    return max((int(match[1].replace(",", "")) for match in found if match), default=0)


COUNTS: dict[str, Callable[[Extent, Sequence[ResultTable]], int]] = {
    "distinct": _distinct,
    "largest": _largest,
    "named": _named,
    "seeds": _seeds,
    "sets at ratios": _sets_at_ratios,
    "settings": _settings,
    "smallest": _smallest,
    "stated": _stated,
}
"""Name → function that counts: distinct values of a column, its largest value, …"""
