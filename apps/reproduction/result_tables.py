"""Result tables read back from their files, with their provenance.

Reads the files that this project's apps and benchmarks write: CSV files whose first lines are
`# key: value`, and JSON files of figures by model, with their provenance in a Markdown file
with the same name.
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import CorruptFileError

if TYPE_CHECKING:
    import pandas as pd

_DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
_COMMAND = re.compile(r"`?(python \w+/\w+\.py[^`;\n]*)`?")


@dataclass(frozen=True, eq=False)
class ResultTable(ShownAsTable):
    """A result table.

    Attributes:
        path: The file.
        head: Key → text, from the lines above the table. A line without a key is a `note`.
        frame: The rows.
    """

    path: Path
    head: dict[str, str]
    frame: "pd.DataFrame"

    @property
    def command(self) -> str:
        """The command that made it; empty if the file does not say."""
        return self.head.get("command", "")

    @property
    def date(self) -> str:
        """The date on which it was made, year-month-day; empty if the file does not say."""
        return self.head.get("date", "")

    @property
    def quick(self) -> bool:
        """Whether it was made by a quick trial."""
        return "--quick" in self.command.split()

    def to_frame(self) -> "pd.DataFrame":
        """Return the rows."""
        return self.frame

    def __repr__(self) -> str:
        return f"ResultTable('{self.path}', {len(self.frame)} rows, {self.date or 'no date'})"


def read_table(path: str | os.PathLike) -> ResultTable:
    """Read a result table.

    Raises:
        FileNotFoundError: if there is no such file.
        CorruptFileError: if it does not hold a table.
    """
    path = Path(path)
    try:
        read = _read_json if path.suffix == ".json" else _read_csv
        head, frame = read(path, path.read_text())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"'{path}' holds no result table: {error}") from error
    return ResultTable(path, head, frame)


def _read_csv(path: Path, text: str) -> "tuple[dict[str, str], pd.DataFrame]":
    from io import StringIO

    import pandas as pd

    lines = text.splitlines(keepends=True)
    comments = [line for line in lines if line.startswith("#")]
    frame = pd.read_csv(StringIO("".join(line for line in lines if not line.startswith("#"))))
    head = _head(line.lstrip("# ").strip() for line in comments)
    for column in ("command", "date"):
        if column not in head and column in frame:
            head[column] = str(frame[column].iloc[-1])
    return head, frame


def _read_json(path: Path, text: str) -> "tuple[dict[str, str], pd.DataFrame]":
    import pandas as pd

    frame = pd.DataFrame.from_dict(json.loads(text)["models"], orient="index")
    frame = frame.rename_axis("model").reset_index()
    beside = path.with_suffix(".md")
    above = beside.read_text().partition("```")[0].splitlines() if beside.exists() else []
    return _head(line for line in above if not line.startswith("#")), frame


def _head(lines: Iterable[str]) -> dict[str, str]:
    """Return key → text; command and date are found anywhere in the lines."""
    lines = list(lines)
    head: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(": ")
        if colon and re.fullmatch(r"[\w .,'*-]{1,60}", key):
            head[key.lower()] = value
        elif line:
            head["note"] = " ".join([head["note"], line] if "note" in head else [line])
    whole = "\n".join(lines)
    for key, pattern in (("command", _COMMAND), ("date", _DATE)):
        found = pattern.search(head.get(key, "")) or pattern.search(whole)
        if found:
            head[key] = found.group(found.lastindex or 0).strip()
    return head
