"""Result files: NumPy archives with a JSON header, without pickle."""

import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError

# AttributeError: a file that is not an archive loads as an array.
_DAMAGE = (
    *(OSError, ValueError, KeyError, EOFError, AttributeError),
    *(zlib.error, zipfile.BadZipFile),
)


def write_archive(
    path: str | os.PathLike,
    kind: str,
    header: Mapping[str, object],
    arrays: Mapping[str, np.ndarray],
    *,
    compress: bool = True,
) -> None:
    """Write an .npz file, replacing an older one only when the new one is complete.

    Args:
        path: The file.
        kind: Name and version of the format, which `read_archive` checks.
        header: Values that can be stored as JSON.
        arrays: The arrays by name.
        compress: Whether to compress the arrays.

    Raises:
        InvalidArgumentError: if the file cannot be written, or its name does not end in .npz.
    """
    if Path(path).suffix != ".npz":
        raise InvalidArgumentError(f"The name of the file ends in .npz. Received: '{path}'")
    text = json.dumps({"format": kind, **header})
    save = np.savez_compressed if compress else np.savez
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        save(file, header=np.array(text), **arrays)  # type: ignore[arg-type]  # any name


def read_archive(
    path: str | os.PathLike, kind: str, what: str, *, bare: bool = False
) -> tuple[dict, dict]:
    """Return the header and the arrays of an .npz file written by this package.

    Args:
        path: The file.
        kind: The header's expected `format`.
        what: Name of the expected content, for error messages.
        bare: Whether to accept the older format too, which has arrays but no header.

    Raises:
        FileNotFoundError: if there is no such file.
        CorruptFileError: if the file is damaged or has another format.
    """
    with _opened(path, kind, what, bare) as (header, archive):
        return header, {name: archive[name] for name in archive.files if name != "header"}


def read_header(path: str | os.PathLike, kind: str, what: str) -> dict:
    """Return only the header; arguments and errors are those of `read_archive`."""
    with _opened(path, kind, what) as (header, _):
        return header


@contextmanager
def _opened(
    path: str | os.PathLike, kind: str, what: str, bare: bool = False
) -> Iterator[tuple[dict, np.lib.npyio.NpzFile]]:
    """Yield the checked header and the archive, whose arrays are read on access."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no {what} file '{path}'.")
    try:
        # Opened here: NumPy leaves its own file open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            is_bare = bare and "header" not in archive
            header = {"format": kind} if is_bare else json.loads(str(archive["header"]))
            if header.get("format") != kind:
                raise CorruptFileError(
                    f"'{path}' is not a {what}: its format is {header.get('format')!r}, "
                    f"expected {kind!r}."
                )
            yield header, archive
    except _DAMAGE as error:
        raise CorruptFileError(
            f"'{path}' is not a {what}: it is truncated, damaged or of another kind ({error})."
        ) from error
