"""A table or a figure of a paper, and how much of its extent was measured."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnslicer_tf.report import ResultTable

__all__ = [
    "Entry",
    "Extent",
    "count_seeds",
    "count_settings",
    "distinct",
    "largest",
    "sets_at_ratios",
    "stated",
]

Extent = Callable[[Sequence[ResultTable]], tuple[int, int, str]]
"""From an entry's tables to how many there are, how many the paper has, and of what."""


@dataclass(frozen=True)
class Entry:
    """A table or a figure.

    Attributes:
        id: `paper/name`.
        title: What it shows.
        command: The command that makes it, without `python`; empty where nothing does.
        minutes: Expected on two cores.
        needs: Data sets, and what else must be given.
        tables: Patterns of our result tables; files of single runs are left out.
        figures: Patterns of our pictures.
        more: Patterns of further files, which are linked.
        paper: The papers' tables.
        extents: How much of the paper's extent was measured.
        without: Why there is no command.
        view: Columns that become the rows, the columns and the values of a short form, which
            stands above tables that have them.
        trial: What is added to the command for a trial; `{folder}` is where it may write.
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
    view: tuple[str, str, str] | None = None
    trial: str = "--quick --results {folder}"

    @property
    def part(self) -> str:
        """The key of `PAPERS`."""
        return self.id.partition("/")[0]


def count_settings(wanted: int, unit: str) -> Extent:
    """Count the models and data sets that the files are named after."""

    def count(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
        stems = [table.path.stem.removesuffix("-tests") for table in tables]
        return len({tuple(stem.split("-")[-2:]) for stem in stems}), wanted, unit

    return count


def distinct(column: str, wanted: int, unit: str, but: str = "") -> Extent:
    """Count the distinct values of a column, one of them left out."""

    def count(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
        values = {v for t in tables if column in t.frame for v in t.frame[column].dropna()}
        return len(values - {but}), wanted, unit

    return count


def largest(column: str, wanted: int, unit: str) -> Extent:
    """Take the largest value of a column."""

    def maximum(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
        values = [int(t.frame[column].max()) for t in tables if column in t.frame]
        return max(values, default=0), wanted, unit

    return maximum


def count_seeds(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
    """Count the seeds `0 … n` that stand above the tables; the paper has five models."""
    found = [re.search(r"0 … (\d+)", table.head.get("seeds", "")) for table in tables]
    return max((int(match[1]) + 1 for match in found if match), default=0), 5, "models trained"


def sets_at_ratios(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
    """Count sets of target classes at a prune ratio; the paper has 210 at 13.

    Of tables that share a ratio the one with most sets counts: it has the others' sets too.
    """
    of_sets = stated("sets", 210, "")
    most: dict[float, int] = {}
    for table in tables:
        for ratio in table.frame.get("ratio", ()):
            most[ratio] = max(most.get(ratio, 0), of_sets([table])[0])
    return sum(most.values()), 210 * 13, "sets at a prune ratio"


def stated(key: str, wanted: int, unit: str, pattern: str = r"([\d,]+)") -> Extent:
    """Take the number that stands above the tables."""

    def number(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
        found = [re.search(pattern, table.head.get(key, "")) for table in tables]
        numbers = [int(match[1].replace(",", "")) for match in found if match]
        return max(numbers, default=0), wanted, unit

    return number
