"""Behaviours of units kept on disk, so that a second inspection needs no forward pass."""

import os
from pathlib import Path

import numpy as np

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import InvalidArgumentError

__all__ = ["BehaviourCache"]


class BehaviourCache:
    """A folder of arrays, found again by what they were computed from.

    A key names the model's weights, the operation and the very records, so that nothing is
    ever stale. A damaged file counts as missing. When the folder is full, what was not
    used for longest is removed.

    Args:
        folder: Made when it is missing.
        max_bytes: Most bytes that the folder may hold.

    Raises:
        InvalidArgumentError: if `max_bytes` is not positive, or the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike, max_bytes: int = 10 << 30) -> None:
        if max_bytes < 1:
            raise InvalidArgumentError(f"max_bytes must be positive. Received: {max_bytes}")
        self._folder = Path(folder)
        self._max_bytes = max_bytes
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgumentError(f"Cannot make the folder '{folder}': {error}") from error
        self._bytes = sum(path.stat().st_size for path in self._files())

    def get(self, key: str) -> np.ndarray | None:
        """Return the array of a key, None if it is not there."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                array = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        os.utime(path)  # used just now
        return array

    def put(self, key: str, array: np.ndarray) -> None:
        """Keep an array, whole or not at all."""
        path = self._path(key)
        before = path.stat().st_size if path.exists() else 0
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
        self._bytes += path.stat().st_size - before
        if self._bytes > self._max_bytes:
            self._shrink()

    def __repr__(self) -> str:
        return f"BehaviourCache('{self._folder}', {self._bytes / 2**20:,.1f} MB)"

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.npy"

    def _files(self) -> list[Path]:
        return list(self._folder.glob("*/*.npy"))

    def _shrink(self) -> None:
        """Remove files, the least recently used first, until a tenth of the room is free."""
        for path in sorted(self._files(), key=lambda path: path.stat().st_mtime_ns):
            if self._bytes <= 0.9 * self._max_bytes:
                return
            self._bytes -= path.stat().st_size
            path.unlink()
