"""The application `nnslicer`, assembled from its commands."""

from typing import Annotated

import typer

from nnslicer_tf import __version__
from nnslicer_tf._environment import import_keras_quietly, run_application
from nnslicer_tf.cli import compressed, models, slices, testing

app = typer.Typer(
    help="Program analysis of neural networks: slices, and what can be done with them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LOOK = "Slices"
CHANGE = "Smaller models"
COMPRESSED = "Compressed models"
TEST = "Tests"
MORE = "More"

app.command(rich_help_panel=LOOK)(slices.demo)
app.command(rich_help_panel=LOOK)(slices.profile)
app.command(rich_help_panel=LOOK)(slices.explain)
app.command("slice", rich_help_panel=LOOK)(slices.slice_)
app.command(rich_help_panel=LOOK)(slices.show)
app.command(rich_help_panel=LOOK)(slices.explore)
app.command(rich_help_panel=CHANGE)(models.prune)
app.command(rich_help_panel=CHANGE)(models.semantic)
app.command(rich_help_panel=COMPRESSED)(compressed.agreement)
app.command(rich_help_panel=COMPRESSED)(compressed.deviations)
app.command(rich_help_panel=COMPRESSED)(compressed.suite)
app.command(rich_help_panel=COMPRESSED)(compressed.layers)
app.command(rich_help_panel=COMPRESSED)(compressed.recipe)
app.command(rich_help_panel=TEST)(testing.detect)
app.command(rich_help_panel=TEST)(testing.cover)
app.command(rich_help_panel=TEST)(testing.inspect)
app.command(rich_help_panel=TEST)(testing.causes)
app.command(rich_help_panel=TEST)(testing.lines)
app.command(rich_help_panel=TEST)(testing.planes)


@app.command(rich_help_panel=MORE)
def warmup() -> None:
    """Compile the kernels now, so that the first slice does not wait for it."""
    from nnslicer_tf._kernels.ahead import PARTS, compile_ahead
    from nnslicer_tf._kernels.compiled import COMPILING

    import_keras_quietly()
    compile_ahead(PARTS)
    for process in COMPILING:
        process.wait()
    print("The kernels are compiled, for this user on this machine.")


def _version(asked: bool) -> None:
    if asked:
        print(f"nnslicer_tf {__version__}")
        raise typer.Exit


@app.callback()
def _nnslicer(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Program analysis of neural networks: slices, and what can be done with them."""


def main() -> None:
    """Run the command line; bad input gives one line and exit code 2."""
    run_application(app, "nnslicer")
