"""Command lines of experiments: options from a settings dataclass, then run and write.

    app = experiments(__name__, __doc__, "nnslicer", ("curves", "CurveSettings", "pruning:curves"))

Experiments are named, not imported, so that `--help` does not load TensorFlow.
"""

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer
import typer.core

from nnslicer_tf._environment import import_keras_quietly, run_application
from nnslicer_tf._files import check_writable
from nnslicer_tf.errors import DatasetUnavailableError
from reproduction.downloads import how_to_get
from reproduction.settings import Settings

MAX_ROWS = 40
"""Tables with more rows are not printed."""

Results = Annotated[Path | None, typer.Option(help="Folder of tables and figures.")]
Quick = Annotated[bool, typer.Option(help="A trial with few samples.")]


class _FirstByDefault(typer.core.TyperGroup):
    """A group of commands that runs the first one if none is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def application(text: str | None, *, first_by_default: bool = False) -> typer.Typer:
    """Return an application without commands; the first added one may run if none is given."""
    return typer.Typer(
        add_completion=False,
        no_args_is_help=not first_by_default,
        pretty_exceptions_enable=False,
        help=text,
        cls=_FirstByDefault if first_by_default else None,
    )


def experiments(
    script: str, text: str | None, package: str, *commands: Sequence, first_by_default: bool = False
) -> typer.Typer:
    """Return an application of experiments in a package, and run it if `script` is "__main__".

    A command is its name, its settings' name in the package's module `settings`,
    "module:function", and if needed the help and a function to finish with: see `add_experiment`.
    """
    app = application(text, first_by_default=first_by_default)
    settings = importlib.import_module(f"reproduction.{package}.settings")
    for name, options, function, *rest in commands:
        help_text, finish = (*rest, "", "")[:2]
        finish = finish and f"reproduction.{package}.{finish}"
        function = f"reproduction.{package}.{function}"
        add_experiment(app, name, getattr(settings, options), function, help_text, finish)
    if script == "__main__":
        main(app)
    return app


def add_experiment(
    app: typer.Typer,
    name: str,
    settings: type[Settings],
    run: str,
    text: str = "",
    finish: str = "",
) -> None:
    """Add a command that runs an experiment and writes its results.

    Its options are the fields of the settings with Typer's annotations, `--results` and `--quick`;
    an application with a single command omits its name. `run` is "module:function", which maps
    settings to `ExperimentResult`, and `finish` one to call with the folder of written results.
    Without a `text`, the settings' docstring is the help.
    """

    def load(function: str) -> Callable[..., Any]:
        module, _, attribute = function.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def command(results: Path | None, quick: bool, **given: Any) -> None:
        import_keras_quietly()  # settings may look into the zoo
        chosen = settings(**given)
        chosen = chosen.quick() if quick else chosen
        folder = results or (chosen.trial_folder if quick else chosen.results_folder)
        explore = getattr(chosen, "explore", None)
        for path in (folder / "trial", explore):
            if path is not None:
                check_writable(path)
        # Write results, print the short tables, and print where everything is.
        result = load(run)(chosen)
        if results is None and not quick:
            folder = _not_over_others(folder, chosen, result)
        files = result.write(folder)
        if explore is not None:
            result.view().save(explore)
            files.append(explore)
        for table in result.tables:
            if table.title and len(table.frame) <= MAX_ROWS:
                print(table, end="\n\n")
        print(f"written to {folder}: {', '.join(path.name for path in files)}", flush=True)
        if finish:
            load(finish)(folder)

    fields = [f for f in dataclasses.fields(settings) if get_origin(f.type) is Annotated]
    options = [(f.name, f.type, f.default) for f in fields]
    options += [("results", Results, None), ("quick", Quick, False)]
    parameters = []
    for option, annotation, default in options:
        default = inspect.Parameter.empty if default is dataclasses.MISSING else default
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(option, kind, default=default, annotation=annotation))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for Typer
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__ = text or settings.__doc__
    app.command(name)(command)


def _not_over_others(folder: Path, chosen: Settings, result: Any) -> Path:
    """Return the folder of kept results, or another one if those are of another experiment."""
    from reproduction.tables import command_line, experiment_of, read_table

    defaults = {field.name: field.default for field in dataclasses.fields(chosen)}
    own = experiment_of(command_line(), defaults)
    for table in result.tables:
        path = folder / f"{table.name}.csv"
        kept = read_table(path).head.get("command", "") if table.title and path.exists() else ""
        if kept and experiment_of(kept, defaults) != own:
            other = Path("runs") / chosen.kept / "other-settings"
            print(
                f"'{path.name}' in {folder} was made with other settings: `{kept}`. These results "
                f"are written to {other}; name a folder by --results to choose another.",
                file=sys.stderr,
            )
            return other
    return folder


def main(app: Callable[[], object]) -> None:
    """Run an application; on bad input, print one line to standard error and exit with code 2."""
    os.environ["MPLBACKEND"] = "Agg"

    def run(**options: Any) -> object:
        try:
            return app(**options)
        except DatasetUnavailableError as error:
            raise DatasetUnavailableError(f"{error} {how_to_get(str(error))}".strip()) from error

    run_application(run, Path(sys.argv[0]).stem)
