"""Commands for the papers' experiments (reproduce), and warmup."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from nnslicer_tf._files import apps_folder, data_folder
from nnslicer_tf._quiet import import_keras_quietly

app = typer.Typer(
    no_args_is_help=True, help="List the papers' tables and figures; measure one again; report."
)

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
    """Run the command that makes a table; arguments after `--` are added to it."""
    from nnslicer_tf.experiments.catalogue import load_catalogue
    from nnslicer_tf.experiments.report import command_of

    command = command_of(load_catalogue()[name], quick, trials.resolve()) + context.args
    script = apps_folder().parent / command[0]
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
    from nnslicer_tf.experiments.report import write_report

    folder = results or data_folder() / "results"
    pages = output or folder / "report"
    face = readme or apps_folder().parent / "docs/results.md"
    print(*write_report(folder, trials, pages, face), sep="\n")


@app.command()
def redraw(results: Kept = None) -> None:
    """Redraw figures from their tables, without measuring anything."""
    from nnslicer_tf.demo import draw_demo
    from nnslicer_tf.experiments import redraw

    folder = results or data_folder() / "results"
    print(*redraw.redraw(folder), sep="\n")
    for path in folder.glob("demo/slices.png"):
        print(draw_demo(path))


def warmup() -> None:
    """Compile the kernels now, so that the first slice does not wait for it."""
    from nnslicer_tf._kernels.ahead import PARTS, compile_ahead
    from nnslicer_tf._kernels.compiled import COMPILING

    import_keras_quietly()
    compile_ahead(PARTS)
    for process in COMPILING:
        process.wait()
    print("The kernels are compiled, for this user on this machine.")
