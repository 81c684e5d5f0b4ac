"""Result tables as CSV and Markdown files, with their provenance above the rows."""

import datetime
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from nnslicer_tf._files import atomic_path
from nnslicer_tf._tables import cell_text

if TYPE_CHECKING:
    import pandas as pd


def provenance(**used: object) -> dict[str, object]:
    """Return the provenance of a result: command, `used`, machine, versions and date."""
    import keras

    packages = (keras.backend.backend(), "keras", "numpy")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return {
        "command": command_line(),
        **used,
        "machine": _machine(),
        "versions": f"Python {platform.python_version()}, {versions}",
        "date": datetime.date.today().isoformat(),
    }


def _machine() -> str:
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""  # not on Windows
    return f"{os.cpu_count()} cores{load}"


def command_line() -> str:
    """Return the running command, with folders outside the working folder as `<folder>`.

    It begins with the backend of Keras, if that was chosen for this command.
    """
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    chosen = [] if backend == "tensorflow" else [f"KERAS_BACKEND={backend}"]
    return " ".join([*chosen, "python", *map(_shown, sys.argv)])


def _shown(argument: str) -> str:
    path = Path(argument)
    if not path.is_absolute() and path.parts[:1] != ("..",):
        return shlex.quote(argument)
    return "<folder>" if path.is_dir() else f"<folder>/{shlex.quote(path.name)}"


def write_table(
    path: str | os.PathLike,
    title: str,
    table: "pd.DataFrame",
    head: Mapping[str, object],
    text: str = "",
) -> None:
    """Write `path` with the endings .csv and .md, each completely or not at all.

    Args:
        path: Path of the files, without an ending.
        title: Heading of the Markdown.
        table: The rows.
        head: The lines above the rows; see `provenance`.
        text: Markdown below the rows.
    """
    path, lines = Path(path), [f"{key}: {value}" for key, value in head.items()]
    with atomic_path(path.with_suffix(".csv")) as temporary:
        comment = "".join(f"# {line}\n" for line in lines)
        temporary.write_text(comment + table.to_csv(index=False, float_format="%.5g"))
    with atomic_path(path.with_suffix(".md")) as temporary:
        items = "\n".join(f"- {line}" for line in lines)
        parts = (f"# {title}", items, markdown_table(table), text.strip())
        temporary.write_text("\n\n".join(filter(None, parts)) + "\n")


def markdown_table(table: "pd.DataFrame") -> str:
    """Return a table as Markdown, with four significant digits for numbers."""
    rows = [[_cell(title) for title in table.columns], ["---"] * len(table.columns)]
    rows += [[_cell(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(value: object) -> str:
    return cell_text(value).replace("|", "\\|").replace("\n", " ")
