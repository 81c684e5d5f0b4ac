"""Writing without damage to existing files."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnslicer_tf.errors import InvalidArgumentError


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
