"""The application `nnslicer`, assembled from its commands."""

import inspect
import os
from collections.abc import Callable
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from nnslicer_tf import __version__
from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import run_application
from nnslicer_tf._numerics import TASKS
from nnslicer_tf.cli import compressed, inputs, models, slices, testing, versions
from nnslicer_tf.errors import InvalidArgumentError

app = typer.Typer(
    help="Program analysis of neural networks: slices, and what can be done with them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PANELS = {
    "Slices": (slices, ("demo", "profile", "explain", "slice_", "show", "explore")),
    "Smaller models": (models, ("prune", "semantic")),
    "Compressed models": (compressed, ("agreement", "deviations", "suite", "layers", "recipe")),
    "Versions": (versions, ("diff",)),
    "Tests": (testing, ("detect", "cover", "inspect", "causes", "lines", "planes")),
}


def _checked(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that refuses options without effect, and to write over what it reads."""
    signature = inspect.signature(command)
    helps = {
        name: str(getattr(option, "help", ""))
        for name, parameter in signature.parameters.items()
        for option in getattr(parameter.annotation, "__metadata__", ())
    }
    written = {name for name, text in helps.items() if text.startswith(inputs.WRITTEN)}

    @wraps(command)
    def run(context: typer.Context, **options: Any) -> None:
        sources = {name: context.get_parameter_source(name) for name in options}
        inputs.GIVEN.set(frozenset(n for n, s in sources.items() if s and s.name == "COMMANDLINE"))
        inputs.check_effects(options, helps)
        given = {name: v for name, v in options.items() if isinstance(v, (str, Path))}
        files = {name: v for name, v in given.items() if os.path.isfile(v)}
        for output, name in product(written & {*files}, {*files} - written):
            if os.path.samefile(files[output], files[name]):
                raise InvalidArgumentError(
                    f"--{output} would overwrite '{files[name]}', which the command reads "
                    f"({name}). Choose another file."
                )
        command(**options)

    # Typer passes its context to a parameter of this type. It knows which options were given.
    own = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [*signature.parameters.values(), own]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


for _panel, (_module, _names) in _PANELS.items():
    for _name in _names:
        _command = _checked(getattr(_module, _name))
        app.command(_name.rstrip("_"), rich_help_panel=_panel)(_command)


@app.command(rich_help_panel="More")
def warmup() -> None:
    """Compile the kernels now, so that the first slice does not wait for it."""
    from nnslicer_tf._kernels import compile_all

    compile_all()
    print("The kernels are compiled, for this user on this machine.")


def _version(asked: bool) -> None:
    if asked:
        print(f"nnslicer_tf {__version__}")
        raise typer.Exit


@app.callback()
def _nnslicer(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(help=f"What the outputs are, if not recognised: {', '.join(TASKS)}."),
    ] = None,
) -> None:
    """Program analysis of neural networks: slices, and what can be done with them."""
    if task is not None:
        check_name("task", task, TASKS)
        if context.invoked_subcommand in ("demo", "show", "suite", "warmup"):
            raise inputs.no_effect("task", "a --model")
    inputs.TASK.set(task)


def main() -> None:
    """Run the command line; bad input gives one line and exit code 2."""
    run_application(app, "nnslicer")
