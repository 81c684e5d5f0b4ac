"""The package's own data folders, and writing without damage to existing files."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnslicer_tf.errors import InvalidArgumentError


def data_folder() -> Path:
    """Return the folder with weights, the papers' tables and measured results.

    In a source tree it is `data/` beside the package; in an installed package it is
    `nnslicer_tf/data/`.
    """
    installed = Path(__file__).parent / "data"
    return installed if installed.is_dir() else Path(__file__).parents[1] / "data"


def weights_file(name: str) -> Path:
    """Return the path of a file of weights, whether or not it exists.

    Large ones are not installed: an installed package finds those of the checkout, if it is used
    in one.

    Args:
        name: The path below the folder `weights` of the data.
    """
    kept = data_folder() / "weights" / name
    checkout = Path("data/weights").resolve() / name
    return checkout if checkout.is_file() and not kept.is_file() else kept


def apps_folder() -> Path:
    """Return the folder with the scripts of the experiments.

    In a source tree it is `apps/` beside the package; in an installed package it is
    `nnslicer_tf/apps/`.
    """
    installed = Path(__file__).parent / "apps"
    return installed if installed.is_dir() else Path(__file__).parents[1] / "apps"


def results_folder() -> Path:
    """Return where results are written: `data/results`, or `./results` if installed."""
    installed = (Path(__file__).parent / "data").is_dir()
    return Path("results") if installed else data_folder() / "results"


def check_writable(path: str | os.PathLike) -> Path:
    """Return `path` as a `Path` after checking that a file can be written there.

    Call it before long work starts. Missing parent folders are created.

    Raises:
        InvalidArgumentError: if `path` is a folder, or nothing can be written there.
    """
    path = Path(path)
    if path.is_dir():
        raise InvalidArgumentError(f"Cannot write to '{path}': it is a folder. Give a file name.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise InvalidArgumentError(f"Cannot write to '{path}': {reason}.") from error
    return path


@contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds.

    On an exception the temporary file is removed, and `path` is left unchanged.
    """
    path = check_writable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(_usual_mode())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _usual_mode() -> int:
    """Return the usual permissions of a new file; those of temporary files are stricter."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
