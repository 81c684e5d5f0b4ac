"""Results of experiments: tables and figures, and how they are written to a folder."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nnslicer_tf import report
from nnslicer_tf._files import atomic_path
from reproduction.settings import DATA
from reproduction.tables import device_name, markdown_table, provenance, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nnslicer_tf.report.explorer.explorer import Explorer


@dataclass(frozen=True, eq=False)
class ExperimentTable:
    """A table of results.

    Without a title, only a CSV file is written, without a head and in full precision, for rows from
    which other tables are made.
    """

    name: str  # of the files, without suffix
    frame: pd.DataFrame
    title: str = ""  # heading of the Markdown
    head: Mapping[str, object] = field(default_factory=dict)  # settings that the rows depend on
    text: str = ""  # Markdown below the table

    def write(self, folder: Path) -> list[Path]:
        """Write the table into a folder, and return the files."""
        path = folder / f"{self.name}.csv"
        if not self.title:
            with atomic_path(path) as temporary:
                self.frame.to_csv(temporary, index=False)
            return [path]
        device = device_name()
        used = dict(self.head) if device == "CPU" else {**self.head, "device": device}
        write_table(path, self.title, self.frame, provenance(**used), self.text)
        return [path, path.with_suffix(".md")]

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (self.title, markdown_table(self.frame), self.text)))


@dataclass(frozen=True, eq=False)
class ExperimentFigure:
    """A figure, for the PNG file `name`.

    Arrays that the figure shows and no table contains are saved in an `.npz` file beside it, from
    which `redraw` redraws it.
    """

    name: str
    figure: "Figure"
    dpi: int = 110
    drawn: Mapping[str, np.ndarray] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Write the figure into a folder, close it, and return the files."""
        path = folder / f"{self.name}.png"
        report.save_figure(self.figure, path, dpi=self.dpi)
        if not self.drawn:
            return [path]
        with atomic_path(path.with_suffix(".npz")) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, **self.drawn)  # type: ignore[arg-type]
        return [path, path.with_suffix(".npz")]


@dataclass(frozen=True, eq=False)
class ExperimentResult:
    """Tables and figures of an experiment."""

    tables: Sequence[ExperimentTable] = ()
    figures: Sequence[ExperimentFigure] = ()
    logs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # JSON files by name
    view: "Callable[[], Explorer] | None" = None  # for the option `--explore`

    def table(self, name: str) -> pd.DataFrame:
        """Return the rows of a table."""
        return {table.name: table.frame for table in self.tables}[name]

    def write(self, folder: str | os.PathLike) -> list[Path]:
        """Write everything into a folder, each file atomically; return the files."""
        folder = Path(folder)
        files = [path for table in self.tables for path in table.write(folder)]
        files += [path for figure in self.figures for path in figure.write(folder)]

        for name, log in self.logs.items():
            files.append(folder / f"{name}.json")
            with atomic_path(files[-1]) as temporary:
                temporary.write_text(json.dumps(log, indent=1) + "\n")
        return files


def paper_frame(name: str, na_values: str = "") -> pd.DataFrame:
    """Return a table of a paper, such as `"nnslicer/table4"`; `na_values` marks missing figures."""
    return pd.read_csv(DATA / "paper" / f"{name}.csv", comment="#", na_values=na_values)


def paper_text(*names: str) -> str:
    """Return tables of papers as Markdown, each under its citation."""
    parts = []
    for name in names:
        path = DATA / "paper" / f"{name}.csv"
        citation = path.read_text().splitlines()[0].lstrip("# ")
        table = pd.read_csv(path, comment="#", keep_default_na=False)
        parts.append(f"{citation}:\n\n{markdown_table(table)}")
    return "\n\n".join(parts)


def note(name: str, **values: object) -> str:
    """Return a text that stands below tables, from `notes.toml`."""
    notes = tomllib.loads(Path(__file__).with_name("notes.toml").read_text(encoding="utf-8"))
    return " ".join(notes[name].split()).format(**values)


def versions(*packages: str) -> str:
    """Return installed packages with their versions."""
    return ", ".join(f"{package} {version(package)}" for package in packages)


def compact(array: np.ndarray) -> np.ndarray:
    """Return an array at half the size, float32 or int32, which suffices for drawing."""
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
