"""Running of command lines: bad input gives one line on standard error and exit code 2."""

import sys
import warnings
from collections.abc import Callable

from nnslicer_tf.errors import NNSlicerError


def run(app: Callable[..., object], name: str) -> None:
    """Run a Typer application.

    Args:
        app: The application.
        name: Its name in error messages.
    """

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        print(f"{name}: {' '.join(str(message).split())}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            code = app(prog_name=name, standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except (NNSlicerError, OSError) as error:
        _stop(f"{name}: {error}")
    except Exception as error:
        # Typer raises the errors of Click, or of the part of Click that it bundles.
        if type(error).__name__ == "Abort":  # Ctrl-C
            sys.exit(130)
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        command = context.command_path if context else name
        message = error.format_message().rstrip(".")
        _stop(f"{command}: {message}. See '{command} --help'.")
    sys.exit(code if isinstance(code, int) else 0)


def _stop(message: str) -> None:
    print(" ".join(message.split()), file=sys.stderr)
    sys.exit(2)
