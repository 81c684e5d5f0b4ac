"""Reproduce the papers' tables and figures: list them, run one, report all.

    python apps/reproduce.py list
    python apps/reproduce.py run nnslicer/table4 --quick
    python apps/reproduce.py run exactline/figure2 -- --networks FOLDER
    python apps/reproduce.py report

`run` starts the app that owns a table. A full run writes where that app keeps its results;
a trial (`--quick`) writes into `runs/reproduce`, never over what is kept. `report` puts
what is kept and these trials on one page beside the papers' figures, as self-contained
HTML and as Markdown, and the headlines into the README.
"""

import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from _catalogue import CATALOGUE, PAPERS
from _entries import Entry
from _headlines import headline_table, headlines

from nnslicer_tf._files import atomic_path, check_writable, data_folder
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError
from nnslicer_tf.report import (
    Code,
    Heading,
    Link,
    Page,
    Picture,
    ResultTable,
    Table,
    Text,
    markdown_table,
    provenance,
    read_table,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- headline -->", "<!-- /headline -->"

Kept = Annotated[Path | None, typer.Option("--results", help="Folder of results that are kept.")]
Trials = Annotated[Path, typer.Option("--trials", help="Folder of fresh trials.")]


@app.command("list")
def list_entries(results: Kept = None) -> None:
    """Show every table and figure: what it needs, minutes on two cores, and its status."""
    folder = results or data_folder() / "results"
    print(f"{'id':<24}{'minutes':>8}  status")
    for entry in CATALOGUE:
        said = status(entry, found(folder, entry.tables), folder)
        print(f"{entry.id:<24}{entry.minutes or '':>8}  {said}")
        needs = f"; needs {entry.needs}" if entry.needs else ""
        print(f"{'':<34}{entry.title}{needs}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="An id of `list`.")],
    quick: Annotated[bool, typer.Option("--quick", help="A trial of a few minutes.")] = False,
    trials: Trials = Path("runs/reproduce"),
) -> None:
    """Run the command of a table; what follows `--` is added to it."""
    command = command_of(entry_of(name), quick, trials) + context.args
    print("python", shlex.join(command), flush=True)
    raise typer.Exit(subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode)


@app.command()
def report(
    results: Kept = None,
    trials: Trials = Path("runs/reproduce"),
    output: Annotated[Path | None, typer.Option(help="Folder of the pages.")] = None,
    readme: Annotated[Path | None, typer.Option(help="File with the headlines.")] = None,
) -> None:
    """Write report.html, report.md, and the headlines between their marks in the README."""
    folder = results or data_folder() / "results"
    output, readme = output or folder / "report", readme or ROOT / "README.md"
    pages = {".html": output / "report.html", ".md": output / "report.md"}
    for path in pages.values():
        check_writable(path)
    rows = headlines(tables_by_name(folder))
    text = replaced(readme.read_text(), BEGIN, END, headlines_markdown(rows, pages, readme))
    page = build_page(folder, trials, headline_table(rows))
    for path, written in (
        (pages[".html"], page.html(output)),
        (pages[".md"], page.markdown(output)),
    ):
        with atomic_path(path) as temporary:
            temporary.write_text(written)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    with atomic_path(readme) as temporary:
        temporary.write_text(text)
    print(f"{readme}: {len(rows)} headlines")


def entry_of(name: str) -> Entry:
    """Return an entry of the catalogue.

    Raises:
        InvalidArgumentError: for an unknown id, or an entry that nothing makes.
    """
    entries = {entry.id: entry for entry in CATALOGUE}
    if name not in entries:
        raise InvalidArgumentError(f"There is no '{name}'. Choose one of: {', '.join(entries)}")
    if not entries[name].command:
        raise InvalidArgumentError(f"Nothing makes '{name}': {entries[name].without}.")
    return entries[name]


def command_of(entry: Entry, quick: bool, trials: Path) -> list[str]:
    """Return the arguments of Python that make an entry."""
    command = shlex.split(entry.command)
    if not quick:
        return command
    if "--output" in command:  # what a full run writes is not for a trial
        command = command[: command.index("--output")]
    folder = (trials / entry.id).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return command + [part.format(folder=folder) for part in entry.trial.split()]


def found(folder: Path, patterns: tuple[str, ...]) -> list[ResultTable]:
    """Return the tables of some patterns; files that cannot be read are left out."""
    tables = []
    for path in matching(folder, patterns):
        if "runs" in re.split(r"[-_]", path.stem):
            continue
        try:
            tables.append(read_table(path))
        except CorruptFileError as error:
            print(f"left out: {error}", file=sys.stderr)
    return tables


def matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Return the files of some patterns below a folder, each once."""
    return list(dict.fromkeys(p for pattern in patterns for p in sorted(folder.glob(pattern))))


def tables_by_name(folder: Path) -> dict[str, ResultTable]:
    """Return all tables of the catalogue: path below the folder without ending → table."""
    patterns = tuple(pattern for entry in CATALOGUE for pattern in entry.tables)
    tables = found(folder, patterns)
    return {table.path.relative_to(folder).with_suffix("").as_posix(): table for table in tables}


def status(entry: Entry, tables: list[ResultTable], folder: Path) -> str:
    """Return in words what was measured, and when."""
    if not entry.command:
        return entry.without
    whole = [table for table in tables if not table.quick]
    date = max((table.date for table in whole or tables), default="")
    if tables and not whole:
        return f"quick only ({date})"
    if not tables and not (not entry.tables and matching(folder, entry.figures)):
        return "not measured"
    counts = [extent(whole) for extent in entry.extents]
    short = [f"{have:,} of {all_:,} {unit}" for have, all_, unit in counts if have < all_]
    said = f" ({date})" if date else ""
    return f"partly{said}: {', '.join(short)}" if short else f"measured{said}"


def build_page(folder: Path, trials: Path, headline: pd.DataFrame) -> Page:
    """Return the page of everything."""
    page = Page("Tables and figures of the papers, measured")
    head = provenance()
    page.add(
        Text(
            "What this project measured beside what the papers report. Every table names the "
            "command that made it, its seed, sizes, versions and date."
        ),
        Code("python apps/reproduce.py report"),
        Text(f"Written {head['date']}, {head['versions']}."),
        Heading("Headlines"),
        Table(headline, "As good: at least the paper's figure, or the goal where one is named"),
    )
    drawn: set[Path] = set()
    for part, title in PAPERS.items():
        page.add(Heading(title))
        entries = [entry for entry in CATALOGUE if entry.part == part]
        bare = [entry for entry in entries if not entry.command and not entry.paper]
        for entry in entries:
            if entry not in bare:
                add_entry(page, entry, folder, drawn)
        page.add(*(Text(f"{e.id}: {e.title}; {e.without}.") for e in bare))
        if part == "models":
            page.add(Table(fingerprints(), "Weights that come with the project"))
    add_others(page, folder, drawn)
    add_trials(page, trials)
    return page


def add_entry(page: Page, entry: Entry, folder: Path, drawn: set[Path]) -> None:
    """Add a table or figure: how it was made, ours, the paper's, pictures, files."""
    tables = found(folder, entry.tables)
    page.add(
        Heading(f"{entry.id}: {entry.title}", 3), Text(f"Status: {status(entry, tables, folder)}.")
    )
    if entry.command:
        needs = f"Needs {entry.needs}. About {entry.minutes} minutes on two cores."
        page.add(Text(needs), Code(f"python {entry.command}"))
    for table in tables:
        page.add(*short_form(table, entry.view, "Here"))
        add_table(page, table, folder)
    for name in entry.paper:
        published = read_table(data_folder() / "paper" / name)
        page.add(*short_form(published, entry.view, "The paper"), paper_table(published))
    for path in matching(folder, entry.figures):
        if path not in drawn:
            page.add(Picture(path, f"{path.relative_to(folder).with_suffix('')}"))
            drawn.add(path)
    for path in matching(folder, entry.more):
        page.add(Link(path.relative_to(folder).as_posix(), path))


def add_table(page: Page, table: ResultTable, folder: Path) -> None:
    """Add a result table and what stands above it."""
    name = table.path.relative_to(folder).with_suffix("").as_posix()
    trial = " (a trial)" if table.quick else ""
    head = pd.DataFrame(table.head.items(), columns=["", "made by"])
    page.add(Table(table.frame, f"Here: {name}{trial}"), Table(head, f"How {name} was made", 0))


def short_form(table: ResultTable, view: tuple[str, str, str] | None, whose: str) -> list[Table]:
    """Return one value of a table by two of its columns, if it has them."""
    if not view or not set(view) <= set(table.frame.columns):
        return []
    rows, columns, value = view
    frame = table.frame.assign(**{value: pd.to_numeric(table.frame[value], errors="coerce")})
    short = frame.pivot_table(value, rows, columns, sort=False).reset_index()
    return [Table(short, f"{whose}, {value}: {table.path.stem}")]


def paper_table(table: ResultTable) -> Table:
    """Return a table of a paper, its citation as the caption."""
    citation = table.path.read_text().splitlines()[0].lstrip("# ")
    return Table(table.frame, f"The paper: {citation}")


def add_others(page: Page, folder: Path, drawn: set[Path]) -> None:
    """Add tables and pictures that no entry of the catalogue names, so that none is lost."""
    patterns = {p for entry in CATALOGUE for p in (*entry.tables, *entry.more)}
    named = set(matching(folder, tuple(patterns)))
    tables = [t for t in found(folder, ("*/*.csv",)) if t.path not in named]
    pictures = [path for path in matching(folder, ("*/*.png",)) if path not in drawn]
    if tables or pictures:
        page.add(Heading("Other results"))
    for table in tables:
        add_table(page, table, folder)
    page.add(*(Picture(p, p.relative_to(folder).with_suffix("").as_posix()) for p in pictures))


def add_trials(page: Page, trials: Path) -> None:
    """Add what `run --quick` left."""
    tables = found(trials, ("*/*/*.csv", "*/*/*.json"))
    pictures = matching(trials, ("*/*/*.png",))
    if tables or pictures:
        page.add(Heading("Fresh trials"), Text("Small runs, to see that a command works."))
    for table in tables:
        add_table(page, table, trials)
    page.add(*(Picture(p, p.relative_to(trials).with_suffix("").as_posix()) for p in pictures))


def fingerprints() -> pd.DataFrame:
    """Return the SHA-256 of every file of weights, and of the models of the zoo."""
    from nnslicer_tf import zoo
    from nnslicer_tf.instrument.fingerprint import model_fingerprint

    rows = []
    weights = data_folder() / "weights"
    for path in sorted(weights.rglob("*.weights.h5")):
        model, _, dataset = path.name.removesuffix(".weights.h5").partition("-")
        known = path.parent == weights and model in zoo.names()
        rows.append(
            {
                "weights": path.relative_to(weights).as_posix(),
                "SHA-256 of the file": hashlib.sha256(path.read_bytes()).hexdigest()[:16],
                "fingerprint": model_fingerprint(zoo.load(model, dataset))[:16] if known else "",
            }
        )
    return pd.DataFrame(rows)


def headlines_markdown(rows: list, pages: dict[str, Path], readme: Path) -> str:
    """Return what stands between the marks in the README."""
    html, markdown = (os.path.relpath(pages[kind], readme.parent) for kind in (".html", ".md"))
    return (
        f"{markdown_table(headline_table(rows))}\n\nEverything, with commands, seeds and plots: "
        f"[report.md]({Path(markdown).as_posix()}), or [report.html]({Path(html).as_posix()}) "
        "as one file. Written by `python apps/reproduce.py report`."
    )


def replaced(text: str, begin: str, end: str, new: str) -> str:
    """Return a text with what is between two marks replaced.

    Raises:
        InvalidArgumentError: if the marks are not there, once each.
    """
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise InvalidArgumentError(f"The text needs the marks {begin} and {end}, once, in order.")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{new}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """Run; bad input ends with one line."""
    try:
        app()
    except InvalidArgumentError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
