"""Experiments run again: the commands that made the tables which are kept, and what comes out."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.catalogue import Entry, load_catalogue
from reproduction.settings import DATA
from reproduction.tables import found_tables, read_table

_VARYING = re.compile("second|minute|time|speed|load|latency|ms$|memory", re.IGNORECASE)


def commands_of(entry: Entry, folder: Path) -> dict[str, list[Path]]:
    """Return the commands of an entry, as words for a shell, each with the tables that it made.

    They are read from the heads of the tables in `folder`, so that running them repeats the
    committed experiment. An entry without tables has only the catalogue's command.
    """
    if not entry.command:
        raise InvalidArgumentError(f"Nothing makes '{entry.id}': {entry.without}.")
    made: dict[str, list[Path]] = {}
    for table in found_tables(folder, entry.tables):
        if "command" in table.head and not table.quick:
            made.setdefault(table.head["command"], []).append(table.path)
    return made or {f"python {entry.command}": []}


def arguments_of(command: str, files: Path | None) -> list[str]:
    """Return a command's arguments for Python, with a folder of files in place of `<folder>`."""
    command = re.sub(r" --(work|results|output)[ =]<folder>\S*", "", command)  # not read
    words = shlex.split(command)
    words = words[words.index("python") + 1 :]
    if files is None and any("<folder>" in word for word in words):
        missing = ", ".join(word for word in words if "<folder>" in word)
        raise InvalidArgumentError(f"This experiment reads {missing}: name the folder by --files.")
    return [word.replace("<folder>", str(files)) for word in words]


def trial_of(entry: Entry, trials: Path) -> list[str]:
    """Return the arguments for Python of an entry's trial, and make its folder."""
    if not entry.command:
        raise InvalidArgumentError(f"Nothing makes '{entry.id}': {entry.without}.")
    command = shlex.split(entry.command)
    if "--output" in command:  # a trial writes to another folder
        command = command[: command.index("--output")]
    folder = (trials / entry.id).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return command + [part.format(folder=folder) for part in entry.trial.split()]


def compared(kept: Path, folder: Path) -> str:
    """Return whether a table came out equal in another folder; columns of times do not count.

    Differences of numbers above 1 are shares of these.
    """
    again = next(folder.rglob(kept.name), None)
    if again is None:
        return f"{kept.name} was not written"
    first, second = (read_table(path).frame for path in (kept, again))
    if list(first.columns) != list(second.columns) or len(first) != len(second):
        return f"{kept.name} has other rows or columns"
    texts = [column for column in first.columns if first[column].dtype.kind not in "biuf"]
    if texts:  # the order of the rows says nothing
        first, second = (f.sort_values(texts, ignore_index=True) for f in (first, second))
    differs = []
    for column in first.columns:
        if _VARYING.search(column) or first[column].equals(second[column]):
            continue
        numbers = [
            pd.to_numeric(frame[column], errors="coerce").astype(float) for frame in (first, second)
        ]
        # Large numbers, such as counts of images that attacks made, differ between processors.
        share = (numbers[0] - numbers[1]).abs() / numbers[0].abs().clip(lower=1)
        differs.append(f"{column} by up to {share.max():.3g}")
    return f"{kept.name} differs: {', '.join(differs)}" if differs else f"{kept.name} is equal"


def run(command: list[str], folder: Path | None = None) -> int:
    """Run a script with its arguments, in a folder if one is given; return the exit status."""
    print("python", shlex.join(command), flush=True)
    words = [sys.executable, str(DATA.parent / command[0]), *command[1:]]
    return subprocess.run(words, check=False, cwd=folder).returncode


def run_all(entries: list[Entry], folder: Path, files: Path | None) -> list[str]:
    """Run experiments again in their own folders, the cheapest first; return what came out.

    A command that has ended is not run again, so an interrupted run resumes.
    """
    lines = []
    for entry in sorted(entries, key=lambda entry: entry.minutes):
        for number, (command, tables) in enumerate(commands_of(entry, DATA / "results").items()):
            made = (folder / entry.id / str(number)).resolve()
            if not (made / "ended").exists():
                try:
                    words = arguments_of(command, files)
                except InvalidArgumentError as error:
                    lines.append(f"{entry.id}: not run. {error}")
                    continue
                made.mkdir(parents=True, exist_ok=True)
                # Finished parts of earlier runs do not count: their folder is relative to this one.
                # An option that is given twice counts as it is given last.
                own = ["--results", str(made)] if words[0].startswith("apps/") else []
                if status := run([*words, *own], made):
                    lines.append(f"{entry.id}: ended with status {status}")
                    continue
                (made / "ended").touch()
            lines += [f"{entry.id}: {compared(path, made)}" for path in tables]
    return lines


def entries_to_run(minutes: int, only: str) -> list[Entry]:
    """Return the entries of at most some minutes whose ids begin with one of `only`, by commas."""
    begins = tuple(only.split(","))
    return [
        entry
        for entry in load_catalogue().entries
        if entry.command and entry.minutes <= minutes and entry.id.startswith(begins)
    ]
