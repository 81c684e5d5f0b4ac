"""The catalogue of the papers' tables and figures, and how far each was measured."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.tables import ResultTable


@dataclass(frozen=True)
class Extent:
    """The extent of a measurement, compared with the paper's.

    It is read from the values of a column ("distinct", "largest", "smallest"), from a number in the
    tables' heads ("stated", "seeds", "sets at ratios"), or from the tables' file names: the number
    of different matches of the pattern ("named"). Of several tables the largest number counts; with
    `each`, the smallest of the numbers of its groups of tables.
    """

    count: str  # what is counted
    of: int  # the paper's number
    unit: str
    column: str = ""
    but: str = ""  # a value of the column that is not counted
    head: str = ""  # key of the tables' head to read
    pattern: str = r"([\d,]+)"  # of the head's value, with the number as its group, or of names
    each: str = ""  # pattern; tables in whose names it matches the same text form a group

    def measured(self, tables: Sequence[ResultTable]) -> int:
        """Return the number measured in some tables."""
        if not self.each:
            return self._measured(tables)
        groups: dict[str, list[ResultTable]] = {}
        for table in tables:
            if match := re.search(self.each, table.path.stem):
                groups.setdefault(match[0], []).append(table)
        return min(map(self._measured, groups.values()), default=0)

    def _measured(self, tables: Sequence[ResultTable]) -> int:
        columns = [t.frame[self.column] for t in tables if self.column in t.frame]
        match self.count:
            case "distinct":
                return len({v for column in columns for v in column.dropna()} - {self.but})
            case "largest":
                return max((int(column.max()) for column in columns), default=0)
            case "smallest":
                return min((int(column.min()) for column in columns), default=0)
            case "named":
                matches = [re.search(self.pattern, table.path.stem) for table in tables]
                return len({match[0] for match in matches if match})
            case "seeds":  # `0 … n`
                heads = [" ".join(v for k, v in t.head.items() if "seed" in k) for t in tables]
                matches = [re.search(r"\b0 (?:…|\.\.\.) (\d+)", head) for head in heads]
                return max((int(match[1]) + 1 for match in matches if match), default=0)
            case "stated":
                matches = [re.search(self.pattern, t.head.get(self.head, "")) for t in tables]
                return max((int(m[1].replace(",", "")) for m in matches if m), default=0)
            case "sets at ratios":
                # Of tables that share a ratio, that with the most sets includes the others'.
                of_sets = Extent("stated", self.of, self.unit, head="sets")
                most: dict[float, int] = {}
                for table in tables:
                    for ratio in table.frame.get("ratio", ()):
                        most[ratio] = max(most.get(ratio, 0), of_sets.measured([table]))
                return sum(most.values())
        raise ValueError(f"Nothing is counted as {self.count!r}.")


@dataclass(frozen=True)
class Entry:
    """A table or a figure; files are patterns."""

    id: str  # `paper/name`
    title: str
    command: str = ""  # the command that makes it, without `python`; may be empty
    minutes: int = 0  # expected on two cores
    needs: str = ""  # data sets and files that the command needs
    tables: tuple[str, ...] = ()  # our result tables; files of single runs are excluded
    figures: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # further files to link
    paper: tuple[str, ...] = ()  # the papers' tables
    extents: tuple[Extent, ...] = ()  # to compare with the paper's
    without: str = ""  # why there is no command
    view: tuple[str, ...] = ()  # the columns of a summary: its rows, columns and values
    trial: str = "--quick --results {folder}"  # added to the command for a trial

    @property
    def part(self) -> str:
        """The key of `Catalogue.papers`."""
        return self.id.partition("/")[0]


@dataclass(frozen=True)
class Catalogue:
    """Every table and figure."""

    papers: dict[str, str]  # part of an id → heading in the report, in order
    entries: tuple[Entry, ...]  # in the papers' order
    chosen: tuple[dict[str, Any], ...]  # the headlines of docs/results.md: see `report`
    redraw: dict[str, list]  # patterns of files from which figures are redrawn: see `redraw`

    def __getitem__(self, name: str) -> Entry:
        """Return the entry with an id."""
        entries = {entry.id: entry for entry in self.entries}
        if name not in entries:
            raise InvalidArgumentError(f"There is no '{name}'. Choose one of: {', '.join(entries)}")
        return entries[name]


@cache
def load_catalogue() -> Catalogue:
    """Return the catalogue, read from `catalogue.toml`."""
    data = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
    entries = []
    for fields in data["entries"]:
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        fields["extents"] = tuple(Extent(**extent) for extent in fields.get("extents", ()))
        entries.append(Entry(**fields))
    data["entries"] = entries
    keys = ("entries", "chosen")
    return Catalogue(data["papers"], *(tuple(data[key]) for key in keys), data["redraw"])
