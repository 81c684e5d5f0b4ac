"""Finished parts of long work in a folder, so that an interrupted run resumes.

`identity.json` identifies the work: models, data and options, as plain values or digests. Each part
is an archive `<key>.npz`, whose JSON header can be read without the arrays. Files are written
atomically; the next run removes temporary files that a killed process left. Threads, processes and
hosts may share a folder: equal work writes equal parts.
"""

import json
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from nnslicer_tf._files import (
    Archive,
    atomic_path,
    check_writable,
    folder_lock,
    read_archive,
    write_archive,
)
from nnslicer_tf.errors import CorruptFileError, ProfileMismatchError

_IDENTITY = "identity.json"
_LOG = logging.getLogger(__name__)


class Store:
    """Finished parts of long work, in a folder, with the identity of the work.

    Args:
        folder: Created if it is missing.
        identity: Everything that the parts depend on, as values that can be stored as JSON.
        what: Name of the kind of work, for error messages and the file format, such as
            "checkpoint of a training".
        compress: Whether to compress files; uncompressed ones are written faster.

    Raises:
        ProfileMismatchError: if the folder belongs to work with a different identity.
        CorruptFileError: if the identity in the folder cannot be read.
        InvalidArgumentError: if the folder cannot be written to.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        identity: Mapping[str, object],
        what: str,
        *,
        compress: bool = True,
    ) -> None:
        self.folder = Path(folder)
        self._what = what
        self._format = f"nnslicer_tf {what} 1"
        self._compress = compress
        # Write the identity to a new folder, or compare it with the one that the folder has.
        path = check_writable(self.folder / _IDENTITY)
        with folder_lock(self.folder):  # removes what killed runs left
            pass
        if not path.exists():
            with atomic_path(path) as temporary:
                temporary.write_text(json.dumps(dict(identity), indent=1))
        try:
            known = dict(json.loads(path.read_text()))
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptFileError(f"The {what} '{path}' is damaged: {error}.") from error
        expected = json.loads(json.dumps(dict(identity)))
        for key in {**expected, **known}:
            if known.get(key) != expected.get(key):
                raise ProfileMismatchError(
                    f"The {what} in '{self.folder}' is of another run: its {key} is "
                    f"{known.get(key)!r}, this run's is {expected.get(key)!r}. Choose another "
                    "folder, or remove this one."
                )
        if count := len(self.keys()):
            _LOG.info("Resuming from %d finished parts in '%s'.", count, self.folder)

    def keys(self) -> list[str]:
        """Return the keys of the finished parts, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.npz") if path.name[0] != ".")

    def __contains__(self, key: str) -> bool:
        return self.path(key).exists()

    def path(self, key: str) -> Path:
        """Return the path of a part's file, which need not exist."""
        return self.folder / f"{key}.npz"

    def save(
        self, key: str, header: Mapping[str, object], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Write a part, replacing an older one with the same key.

        Args:
            key: The file's name without its ending.
            header: Values that can be stored as JSON.
            arrays: Arrays by name.

        Raises:
            InvalidArgumentError: if the file cannot be written.
        """
        write_archive(self.path(key), self._format, header, arrays, compress=self._compress)

    def open(self, key: str) -> AbstractContextManager[Archive]:
        """Open a part, whose header and arrays are checked as the block reads them.

        Raises MissingFileError, or CorruptFileError for a file that is damaged or lacks a value.
        """
        return read_archive(self.path(key), self._format, self._what)

    def load(self, key: str) -> tuple[dict, dict[str, np.ndarray]]:
        """Return the header and the arrays of a part; errors as in `open`."""
        with self.open(key) as file:
            return file.header, file.arrays()

    def header(self, key: str) -> dict:
        """Return the header of a part without reading its arrays; errors as in `open`."""
        with self.open(key) as file:
            return file.header

    def remove(self, key: str) -> None:
        """Remove a part if it exists."""
        self.path(key).unlink(missing_ok=True)
