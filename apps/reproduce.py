"""Reproduce the papers' tables and figures: list them, run one, report all.

    python apps/reproduce.py list
    python apps/reproduce.py run nnslicer/table4 --quick
    python apps/reproduce.py run exactline/figure2 -- --networks FOLDER
    python apps/reproduce.py report

`run` starts the app that makes a table. A full run writes to the app's results folder; a trial
(`--quick`) writes to `runs/reproduce`, and never replaces results. `report` writes a single page
with everything, as HTML and Markdown, and the headlines to docs/results.md.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from reproduction.application import main
from reproduction.catalogue import load_catalogue
from reproduction.report import command_of, status_lines, write_report
from reproduction.settings import DATA

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Kept = Annotated[Path | None, typer.Option("--results", help="Folder of full results.")]
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
) -> None:
    """Run the command that makes a table; arguments after `--` are added to it."""
    command = command_of(load_catalogue()[name], quick, trials.resolve()) + context.args
    script = DATA.parent / command[0]
    print("python", shlex.join(command), flush=True)
    done = subprocess.run([sys.executable, str(script), *command[1:]], check=False)
    raise typer.Exit(done.returncode)


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
def redraw(results: Kept = None) -> None:
    """Redraw figures from their tables, without measuring anything."""
    from reproduction import redraw as drawing

    print(*drawing.redraw(results or DATA / "results"), sep="\n")


if __name__ == "__main__":
    main(app)
