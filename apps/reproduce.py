"""Reproduce the papers' tables and figures: list them, run one, report all.

    python apps/reproduce.py list
    python apps/reproduce.py run nnslicer/table4 --quick
    python apps/reproduce.py run exactline/figure2 -- --networks FOLDER
    python apps/reproduce.py report

`run` starts the app that makes a table. A full run writes into the app's folder of results; a
trial (`--quick`) writes into `runs/reproduce`, and never replaces results. `report` writes one
page of everything, as HTML and as Markdown, and the headlines into docs/results.md.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from nnslicer_tf._files import data_folder
from nnslicer_tf.experiments.application import application, main

ROOT = Path(__file__).resolve().parents[1]

app = application(__doc__)

Kept = Annotated[Path | None, typer.Option("--results", help="Folder of full results.")]
Trials = Annotated[Path, typer.Option("--trials", help="Folder of trials.")]


@app.command("list")
def list_entries(results: Kept = None) -> None:
    """Show every table and figure: what it needs, minutes on two cores, and its status."""
    from nnslicer_tf.experiments.report import status_lines

    print(*status_lines(results or data_folder() / "results"), sep="\n")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="An id from `list`.")],
    quick: Annotated[bool, typer.Option("--quick", help="A trial of a few minutes.")] = False,
    trials: Trials = Path("runs/reproduce"),
) -> None:
    """Run the command of a table; arguments after `--` are added to it."""
    from nnslicer_tf.experiments.catalogue import load_catalogue
    from nnslicer_tf.experiments.report import command_of

    command = command_of(load_catalogue()[name], quick, trials) + context.args
    print("python", shlex.join(command), flush=True)
    raise typer.Exit(subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode)


@app.command()
def report(
    results: Kept = None,
    trials: Trials = Path("runs/reproduce"),
    output: Annotated[Path | None, typer.Option(help="Folder for the pages.")] = None,
    readme: Annotated[Path | None, typer.Option(help="File for the headlines.")] = None,
) -> None:
    """Write report.html, report.md, and the headlines between their marks in docs/results.md."""
    from nnslicer_tf.experiments.report import write_report

    folder = results or data_folder() / "results"
    pages, face = output or folder / "report", readme or ROOT / "docs/results.md"
    print(*write_report(folder, trials, pages, face), sep="\n")


@app.command()
def redraw(results: Kept = None) -> None:
    """Draw figures again from their tables, without measuring anything."""
    from nnslicer_tf.experiments import redraw

    print(*redraw.redraw(results or data_folder() / "results"), sep="\n")


if __name__ == "__main__":
    main(app)
