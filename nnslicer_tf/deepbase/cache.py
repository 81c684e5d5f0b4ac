"""A disk cache of units' behaviours, so that a second inspection needs no forward pass."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from nnslicer_tf.engine import Store
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError


class BehaviourCache:
    """A folder of arrays, keyed by digests of weights, operation and records, so never stale.

    Args:
        folder: The folder; created if missing. Damaged files in it count as missing.
        max_bytes: Largest total size; above it the least recently used entries are removed.

    Raises:
        InvalidArgumentError: if `max_bytes` is not positive, or the folder cannot be created.
    """

    def __init__(self, folder: str | os.PathLike, max_bytes: int = 10 << 30) -> None:
        if max_bytes < 1:
            raise InvalidArgumentError(f"max_bytes must be positive. Received: {max_bytes}")
        self._max_bytes = max_bytes
        # Keys cover all that an array depends on. Compression would be slower than a forward pass.
        self._store = Store(folder, {}, "cache of behaviours", compress=False)
        self._bytes = sum(size for _, size, _ in self._files())

    def get(self, key: str) -> np.ndarray | None:
        """Return the array of a key, or None if there is none."""
        try:
            with self._store.open(key) as file:
                values = file.array("values", np.generic, finite=False)
            os.utime(self._store.path(key))  # mark as just used
        except (FileNotFoundError, CorruptFileError):  # perhaps removed by another process
            return None
        return values

    def put(self, key: str, array: np.ndarray) -> None:
        """Store an array atomically; if the folder is full, free a tenth of it."""
        self._store.save(key, {}, {"values": array})
        with suppress(FileNotFoundError):
            self._bytes += self._store.path(key).stat().st_size
        if self._bytes <= self._max_bytes:
            return
        files = self._files()
        self._bytes = sum(size for _, size, _ in files)  # other processes use the folder, too
        for _, size, path in files:
            if self._bytes <= 0.9 * self._max_bytes:
                return
            self._bytes -= size
            path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"BehaviourCache('{self._store.folder}', {self._bytes / 2**20:,.1f} MB)"

    def _files(self) -> list[tuple[int, int, Path]]:
        """Return the time of last use, the size and the path of all files, oldest first."""
        files = []
        for path in map(self._store.path, self._store.keys()):
            with suppress(FileNotFoundError):  # removed by another process
                files.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        return sorted(files)
