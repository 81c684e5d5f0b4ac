"""Finished parts of long work in a folder, so that an interrupted run resumes.

`identity.json` identifies the work: models, data and options, as plain values or digests. Each part
is an archive `<key>.npz`, whose JSON header can be read without the arrays. Files are written
atomically; the next run removes temporary files that a killed process left. Threads, processes and
hosts may share a folder: equal work writes equal parts, and other work is refused. The identity is
that of the run that wrote it first, and each part carries its digest.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from nnslicer_tf import _files
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, ProfileMismatchError

_IDENTITY = "identity.json"
_LOG = logging.getLogger(__name__)


class Store:
    """Finished parts of long work, in a folder, with the identity of the work.

    Args:
        folder: Created if it is missing.
        identity: Everything that the parts depend on, as values that can be stored as JSON.
        what: Kind of work, for errors and the file's format, such as "checkpoint of a training".
        compress: Whether to compress files; uncompressed ones are written faster.

    Raises ProfileMismatchError if the folder belongs to work with a different identity;
    CorruptFileError if the identity in the folder cannot be read; InvalidArgumentError if the
    folder cannot be written to.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        identity: Mapping[str, object],
        what: str,
        *,
        compress: bool = True,
    ) -> None:
        self.folder = _files.as_path(folder)
        self._what = what
        self._format = f"nnslicer_tf {what} 1"
        self._compress = compress
        # Write the identity to a new folder, or compare it with the one that the folder has.
        path = _files.check_writable(self.folder / _IDENTITY)
        with _files.folder_lock(self.folder):  # removes what killed runs left
            pass
        if not path.exists():
            # Of runs that begin at once, the first one writes it.
            with suppress(FileExistsError), _files.atomic_path(path, replace=False) as temporary:
                temporary.write_text(json.dumps(dict(identity), indent=1))
        try:
            known = dict(json.loads(path.read_text()))
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptFileError(f"The {what} '{path}' is damaged: {error}.") from error
        expected = json.loads(json.dumps(dict(identity)))
        self._work = _files.digest([json.dumps(expected, sort_keys=True).encode()])
        for key in {**expected, **known}:
            if known.get(key) != expected.get(key):
                raise ProfileMismatchError(
                    f"The {what} in '{self.folder}' belongs to a different run "
                    f"({key}={known.get(key)!r}; this run has {key}={expected.get(key)!r}). Choose "
                    "another folder, or remove this one."
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
        if not key or key[0] == "." or not {"/", "\\"}.isdisjoint(key):
            raise InvalidArgumentError(f"A key must be a plain file name. Received: {key!r}")
        return self.folder / f"{key}.npz"

    def save(
        self,
        key: str,
        header: Mapping[str, object],
        arrays: Mapping[str, np.ndarray],
        *,
        replace: bool = True,
    ) -> bool:
        """Write a part, `<key>.npz` with a header for JSON, and return whether it was written.

        Without `replace`, a part that exists stays. Raises InvalidArgumentError if writing fails,
        if the key is no file's name, or if the header has "format" or "work", which are its own.
        """
        if taken := {"format", "work"}.intersection(header):
            raise InvalidArgumentError(f"A header has its own {taken.pop()!r}: rename yours.")
        options = {"compress": self._compress, "replace": replace}
        with suppress(FileExistsError):
            header = {**header, "work": self._work}
            arrays = {name: np.asarray(values) for name, values in arrays.items()}
            _files.write_archive(self.path(key), self._format, header, arrays, **options)
            return True
        return False

    @contextmanager
    def open(self, key: str) -> Iterator[_files.Archive]:
        """Open a part, whose header and arrays are checked as the block reads them.

        Raises MissingFileError, CorruptFileError for a file that is damaged or lacks a value, or
        ProfileMismatchError for one that a different run wrote.
        """
        with _files.read_archive(self.path(key), self._format, self._what) as file:
            # Files of older versions do not have it.
            if file.header.get("work", self._work) != self._work:
                raise ProfileMismatchError(
                    f"'{self.path(key)}' belongs to a different run than the other files of its "
                    "folder. Choose another folder, or remove this one."
                )
            yield file

    def load(self, key: str) -> tuple[dict, dict[str, np.ndarray]]:
        """Return the header and the arrays of a part; errors as in `open`."""
        with self.open(key) as file:
            return file.header, file.arrays()
