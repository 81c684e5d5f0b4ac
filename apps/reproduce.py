"""Reproduce the papers' tables and figures: list them, run one, report all.

    python apps/reproduce.py list
    python apps/reproduce.py run nnslicer/table4 --quick
    python apps/reproduce.py run exactline/figure2 -- --networks FOLDER
    python apps/reproduce.py all --minutes 5
    python apps/reproduce.py report
    python apps/reproduce.py pages

`run` repeats the commands that made the tables which are kept, as their heads say, and writes to
the app's results folder; a trial (`--quick`) writes to `runs/reproduce`, never over results. `all`
runs every experiment again, elsewhere, and compares the tables. `report` writes a single page with
everything, as HTML and Markdown, and the headlines to docs/results.md; `pages` writes
docs/papers.md, which parts of the papers work, and docs/downloads.md, what has to be downloaded.
"""

from pathlib import Path
from typing import Annotated

import typer

from reproduction import again
from reproduction.application import main
from reproduction.catalogue import load_catalogue
from reproduction.report import status_lines, write_report
from reproduction.settings import DATA

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Kept = Annotated[Path | None, typer.Option("--results", help="Folder of full results.")]
Files = Annotated[
    Path | None, typer.Option("--files", help="Folder of published models that some need.")
]
Trials = Annotated[Path, typer.Option("--trials", help="Folder of trials.")]


@app.command("list")
def list_entries(results: Kept = None) -> None:
    """Show every table and figure: what it needs, minutes on two cores, and its status."""
    print(*status_lines(results or DATA / "results"), sep="\n")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="An id from `list`.")],
    quick: Annotated[bool, typer.Option("--quick", help="A trial of a few minutes.")] = False,
    trials: Trials = Path("runs/reproduce"),
    files: Files = None,
) -> None:
    """Run the commands that made an entry's tables; arguments after `--` are added to each."""
    entry = load_catalogue()[name]
    commands = [again.trial_of(entry, trials.resolve())] if quick else []
    for command in [] if quick else again.commands_of(entry, DATA / "results"):
        commands.append(again.arguments_of(command, files))
    for command in commands:
        status = again.run([*command, *context.args])
        if status:
            raise typer.Exit(status)


@app.command("all")
def run_all(
    files: Files = None,
    folder: Annotated[Path, typer.Option(help="Folder of new results.")] = Path("runs/again"),
    minutes: Annotated[int, typer.Option(help="Leave out entries that take longer.")] = 10**6,
    only: Annotated[str, typer.Option(help="Begins of ids, by commas.")] = "",
) -> None:
    """Run all experiments again, the cheapest first; report which tables came out equal.

    An interrupted run resumes.
    """
    entries = again.entries_to_run(minutes, only)
    print(f"{len(entries)} entries, about {sum(e.minutes for e in entries)} minutes", flush=True)
    print(*again.run_all(entries, folder, files), sep="\n")


@app.command()
def report(
    results: Kept = None,
    trials: Trials = Path("runs/reproduce"),
    output: Annotated[Path | None, typer.Option(help="Folder for the pages.")] = None,
    readme: Annotated[Path | None, typer.Option(help="File for the headlines.")] = None,
) -> None:
    """Write report.html, report.md, and the headlines between their markers in docs/results.md."""
    folder = results or DATA / "results"
    pages = output or folder / "report"
    face = readme or DATA.parent / "docs/results.md"
    print(*write_report(folder, trials, pages, face), sep="\n")


@app.command()
def pages() -> None:
    """Write docs/papers.md and docs/downloads.md: what works by which command, and its files."""
    from reproduction import downloads, papers

    papers.PAGE.write_text(papers.papers_page())
    downloads.PAGE.write_text(downloads.downloads_page())


@app.command()
def redraw(results: Kept = None) -> None:
    """Redraw figures from their tables, without measuring anything."""
    from reproduction import redraw as drawing

    print(*drawing.redraw(results or DATA / "results"), sep="\n")


if __name__ == "__main__":
    main(app)
