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

    Attributes:
        count: What is counted: values of a column ("distinct", "largest", "smallest"), a number in
            the tables' heads ("stated", "seeds", and "sets at ratios"), or the files whose names
            match ("named") and the models and data sets in their names ("settings").
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
        columns = [t.frame[self.column] for t in tables if self.column in t.frame]
        stems = [table.path.stem for table in tables]
        match self.count:
            case "distinct":
                return len({v for column in columns for v in column.dropna()} - {self.but})
            case "largest":
                return max((int(column.max()) for column in columns), default=0)
            case "smallest":
                return min((int(column.min()) for column in columns), default=0)
            case "named":
                return sum(bool(re.search(self.pattern, stem)) for stem in stems)
            case "settings":
                stems = [re.sub(r"(-interval\d+)?(-tests)?$", "", stem) for stem in stems]
                return len({tuple(stem.split("-")[-2:]) for stem in stems})
            case "seeds":  # `0 … n`
                matches = [re.search(r"0 … (\d+)", t.head.get("seeds", "")) for t in tables]
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
    keys = ("entries", "headlines", "chosen")
    return Catalogue(data["papers"], *(tuple(data[key]) for key in keys), data["redraw"])
