"""The environment of an analysis: cores, optional packages, lazy imports, progress, command lines.

Nothing here imports Keras, so that workers and `nnslicer --help` start fast.
"""

import importlib
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import count
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from nnslicer_tf.errors import MissingPackageError, NNSlicerError

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

T = TypeVar("T")

# Optional package → the extra that installs it, and its name in messages.
_EXTRAS = {
    "ray": ("ray", "Ray"),
    "foolbox": ("foolbox", "Foolbox"),
    "shap": ("shap", "shap"),
    "tensorflow_datasets": ("tfds", "TensorFlow Datasets"),
}


def available_cores() -> int:
    """Return the number of cores that this process may use, or (macOS, Windows) the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def one_thread_a_product() -> AbstractContextManager:
    """Limit matrix products to one thread, for small ones that sharing among threads slows down."""
    return _blas().limit(limits=1)


@cache
def _blas() -> "ThreadpoolController":
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


# --- imports ---


class LazyModule:
    """A stand-in for the module `name`, which is imported on the first use of an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


keras: Any = LazyModule("keras")
ops: Any = LazyModule("keras.ops")


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    spec = find_spec(package)
    # A folder of the same name on the path is also found, but has no code of its own.
    return spec is not None and spec.origin is not None


def require(package: str, what: str, instead: str = "") -> ModuleType:
    """Import a package of an extra; `what` and `instead` begin and end the error message."""
    extra, name = _EXTRAS[package]
    if not is_installed(package):
        raise MissingPackageError(
            f'{what} {name}, which is not installed: pip install "nnslicer_tf[{extra}]". '
            f"{instead}".strip()
        )
    return importlib.import_module(package)


def import_keras_quietly() -> None:
    """Import Keras without its backend's messages, which would bury a command's output."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with hidden_stderr():  # they come before the log level takes effect
        import keras

        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for a GPU and prints messages
            tf.get_logger().setLevel("ERROR")  # it warns of compiling different functions


@contextmanager
def hidden_stderr() -> Iterator[None]:
    """Hide everything that is written to standard error, including messages from C++."""
    standard_error = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)


@contextmanager
def without_retracing_warnings() -> Iterator[None]:
    """Hide TensorFlow's retracing warnings, which new models cause; also works as a decorator."""
    logger = logging.getLogger("tensorflow")

    def passes(record: logging.LogRecord) -> bool:
        return "triggered tf.function retracing" not in record.getMessage()

    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)


# --- progress and command lines ---

SHOWN_AFTER = 2.0
"""Seconds after which a progress bar appears."""

_bars: WeakSet[Any] = WeakSet()
_stages: list[str] = []


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Say in the open progress bars what they wait for, such as "compiling"."""
    _stages.append(what)
    try:
        yield
    finally:
        _stages.remove(what)


def staged(items: Iterable[T], what: str, most: int) -> Iterator[T]:
    """Yield `items`, and say in the open bars at which one of at most `most` the work is."""
    iterator = iter(items)
    for number in count(1):
        with stage(f"{what} {number} of at most {most}"):
            if (item := next(iterator, None)) is None:
                return
            yield item


def track(
    items: Iterable[T], what: str, total: int | None = None, progress: bool = True
) -> Iterator[T]:
    """Yield `items` and show a progress bar named `what`, unless `progress` is false."""
    total = len(items) if total is None and isinstance(items, Sized) else total
    with progress_bar(what, total, progress) as bar:
        for item in items:
            yield item
            bar.update()  # at once, while iterating over the bar counts late


def progress_bar(what: str, total: int | None = None, progress: bool = True, **options: Any) -> Any:
    """Return a progress bar of tqdm, named `what`; it appears after two seconds and then vanishes.

    While nothing advances, such as at a first sample that waits for a compiler, it tells the time,
    and the `stage`. One that can only be at 0 or 1 has no count and no estimate.
    """
    from tqdm.auto import tqdm

    options |= {"leave": False, "delay": SHOWN_AFTER, "disable": not progress}
    bar = tqdm(total=total, desc=f"{what}: ", **options)
    if progress:
        _bars.add(bar)
        _start_clock()
    return bar


@contextmanager
def waiting(what: str, progress: bool = True) -> Iterator[None]:
    """Show the time of one piece of work, of which nothing can be counted."""
    with progress_bar(what, 1, progress) as bar:
        yield
        bar.update()  # a notebook keeps what is not finished, in red


@cache
def _start_clock() -> None:
    """Start the thread that shows the open bars anew every second."""

    def tick() -> None:
        while True:
            time.sleep(1)
            for bar in list(_bars):
                with bar.get_lock():  # it is not closed meanwhile
                    if bar.disable:
                        _bars.discard(bar)
                    elif time.time() - bar.start_t >= SHOWN_AFTER:
                        shown = "{l_bar}{bar}{r_bar}" if bar.total != 1 else "{desc}{elapsed}"
                        bar.bar_format = ", ".join([shown, *_stages[-1:]]) if bar.total else None
                        bar.refresh(nolock=True)
                        bar.last_print_t = time.time()  # so that it is wiped away at the end

    Thread(target=tick, name="nnslicer_tf progress", daemon=True).start()


def announce(text: str, progress: bool = True) -> None:
    """Write a line to standard error, above a progress bar, unless `progress` is false."""
    if progress:
        from tqdm.auto import tqdm

        tqdm.write(text, file=sys.stderr)


def run_application(app: Callable[..., object], name: str) -> None:
    """Run a Typer application; bad input gives one line on standard error and exit code 2."""

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        print(f"{name}: {' '.join(str(message).split())}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            code = app(prog_name=name, standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except (NNSlicerError, OSError) as error:
        message = f"{name}: {error}"
    except Exception as error:
        # Typer raises the errors of Click, or of the part of Click that it bundles.
        if type(error).__name__ == "Abort":  # Ctrl-C
            sys.exit(130)
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        context = getattr(error, "ctx", None)
        command = context.command_path if context else name
        message = f"{command}: {error.format_message().rstrip('.')}. See '{command} --help'."
    else:
        sys.exit(code if isinstance(code, int) else 0)
    print(" ".join(message.split()), file=sys.stderr)
    sys.exit(2)
