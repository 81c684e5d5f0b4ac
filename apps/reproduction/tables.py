"""Result tables as files, written with their provenance and read back.

`write_table` writes CSV files whose first lines are `# key: value`, and Markdown. `read_table` also
reads JSON files of figures by model, with their provenance in a Markdown file of the same name.
"""

import datetime
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pandas as pd

from nnslicer_tf._checks import counted
from nnslicer_tf._files import atomic_path
from nnslicer_tf._tables import ShownAsTable, cell_text
from nnslicer_tf.errors import CorruptFileError


def provenance(**used: object) -> dict[str, object]:
    """Return the provenance of a result: command, `used`, machine, versions and date."""
    import keras

    packages = (keras.backend.backend(), "keras", "numpy")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""  # not on Windows
    return {
        "command": command_line(),
        **used,
        "machine": f"{os.cpu_count()} cores{load}",
        "versions": f"Python {platform.python_version()}, {versions}",
        "date": datetime.date.today().isoformat(),
    }


def device_name() -> str:
    """Return the hardware on which the backend computes: a GPU's name, or `"CPU"`."""
    import keras

    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
        return details.get("device_name", "GPU") if gpus else "CPU"
    if backend == "jax":
        import jax

        device = jax.devices()[0]
        return "CPU" if device.platform == "cpu" else device.device_kind
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def command_line() -> str:
    """Return the running command, with folders outside the working folder as `<folder>`.

    It begins with the backend of Keras, if that was chosen for this command.
    """
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    parts = ["python"] if backend == "tensorflow" else [f"KERAS_BACKEND={backend}", "python"]
    for argument in sys.argv:
        path = Path(argument)
        if not path.is_absolute() and path.parts[:1] != ("..",):
            parts.append(shlex.quote(argument))
        else:
            parts.append("<folder>" if path.is_dir() else f"<folder>/{shlex.quote(path.name)}")
    return " ".join(parts)


_ELSEWHERE = ("--work", "--results", "--explore", "--output", "--workers")


def experiment_of(command: str, defaults: Mapping[str, object] | None = None) -> list[str]:
    """Return the words of a command that say which experiment it is.

    Left out are Python, the options of folders and workers, and options whose value is that of
    `defaults`, by name. Options come last, in alphabetical order.
    """
    words = shlex.split(command)
    words = words[words.index("python") + 1 :] if "python" in words else words
    places, options = [], []
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            places.append(word)
            continue
        name, equals, value = word.partition("=")
        if not equals and words and not words[0].startswith("--"):
            value = words.pop(0)
        default = (defaults or {}).get(name[2:].replace("-", "_"), "")
        if name not in _ELSEWHERE and (not value or str(default) != value):
            options.append([name, value] if value else [name])
    return [*places, *(part for option in sorted(options) for part in option)]


def markdown_table(table: pd.DataFrame) -> str:
    """Return a table as Markdown, with four significant digits for numbers."""
    rows = [list(table.columns), ["---"] * len(table.columns), *table.itertuples(index=False)]
    cells = [[cell_text(v).replace("|", "\\|").replace("\n", " ") for v in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def write_table(
    path: str | os.PathLike, title: str, table: pd.DataFrame, head: Mapping, text: str = ""
) -> None:
    """Write `path` with the endings .csv and .md, each completely or not at all.

    The `title` heads the Markdown, `head` (see `provenance`) stands above the rows, `text` below.
    """
    path, lines = Path(path), [f"{key}: {value}" for key, value in head.items()]
    with atomic_path(path.with_suffix(".csv")) as temporary:
        comment = "".join(f"# {line}\n" for line in lines)
        temporary.write_text(comment + table.to_csv(index=False, float_format="%.5g"))
    with atomic_path(path.with_suffix(".md")) as temporary:
        items = "\n".join(f"- {line}" for line in lines)
        parts = (f"# {title}", items, markdown_table(table), text.strip())
        temporary.write_text("\n\n".join(filter(None, parts)) + "\n")


@dataclass(frozen=True, eq=False)
class ResultTable(ShownAsTable):
    """A result table, in a file."""

    path: Path
    head: dict[str, str]  # from the lines above the table; a line without a key is a `note`
    frame: pd.DataFrame

    @property
    def date(self) -> str:
        """The date on which it was made, year-month-day; empty if the file does not say."""
        return self.head.get("date", "")

    @property
    def quick(self) -> bool:
        """Whether it was made by a quick trial."""
        return "--quick" in self.head.get("command", "").split()

    def to_frame(self) -> pd.DataFrame:
        """Return the rows."""
        return self.frame

    def __repr__(self) -> str:
        rows = counted(len(self.frame), "row")
        return f"ResultTable('{self.path}', {rows}, {self.date or 'no date'})"


def read_table(path: str | os.PathLike) -> ResultTable:
    """Read a result table."""
    path = Path(path)
    text = path.read_text()
    try:
        if path.suffix == ".json":
            frame = pd.DataFrame.from_dict(json.loads(text)["models"], orient="index")
            frame = frame.rename_axis("model").reset_index()
            beside = path.with_suffix(".md")
            above = beside.read_text().partition("```")[0].splitlines() if beside.exists() else []
            return ResultTable(path, _head(ln for ln in above if not ln.startswith("#")), frame)
        lines = text.splitlines(keepends=True)
        frame = pd.read_csv(StringIO("".join(ln for ln in lines if not ln.startswith("#"))))
        head = _head(line.lstrip("# ").strip() for line in lines if line.startswith("#"))
        for column in ("command", "date"):
            if column not in head and column in frame:
                head[column] = str(frame[column].iloc[-1])
        return ResultTable(path, head, frame)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"'{path}' holds no result table: {error}") from error


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
    patterns = {"command": r"`?(python \w+/\w+\.py[^`;\n]*)`?", "date": r"\b(20\d\d-\d\d-\d\d)\b"}
    for key, pattern in patterns.items():
        match = re.search(pattern, head.get(key, "")) or re.search(pattern, "\n".join(lines))
        if match:
            head[key] = match[1].strip()
    return head


def found_tables(folder: Path, patterns: Sequence[str]) -> list[ResultTable]:
    """Return the tables that match some patterns, skipping files that cannot be read."""
    tables = []
    for path in matching_files(folder, patterns):
        if "runs" in re.split(r"[-_]", path.stem):
            continue
        try:
            tables.append(read_table(path))
        except CorruptFileError as error:
            print(f"left out: {error}", file=sys.stderr)
    return tables


def matching_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files below a folder that match some patterns, each once."""
    return list(dict.fromkeys(p for pattern in patterns for p in sorted(folder.glob(pattern))))
