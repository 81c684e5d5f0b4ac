"""Compilation of inner loops by Numba, with machine code cached on disk for all processes."""

import functools
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numba import njit
from numba.core.caching import FunctionCache

# For functions that are inlined into a compiled caller. Numba's types lack two of the options.
inlined: Any = njit(  # type: ignore[call-overload]
    forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
)


def compiled(function: Callable) -> Any:
    """Compile a function with Numba's `njit` at its first call.

    The function runs without the GIL, and is compiled once per machine for the types that occur.
    Pass large functions C-ordered, writable arrays (`writable`): others are compiled separately.
    """
    dispatcher: Any = njit(nogil=True)(function)
    dispatcher._cache = _SharedCache(function)
    return dispatcher


def writable(x: np.ndarray, dtype: type) -> np.ndarray:
    """Return an array of a dtype, C-ordered and writable; a copy only if it is not."""
    return np.require(x, dtype, ["C", "W"])


def is_compiled(dispatcher: Any) -> bool:
    """Return whether a function has been compiled, here or on disk."""
    return bool(dispatcher.signatures) or dispatcher._cache.holds_any()


@functools.cache
def _source(folder: Path) -> str:
    """Return a digest of this package and of a kernel's own: callees affect machine code, too."""
    files = sorted({*Path(__file__).parent.glob("*.py"), *folder.glob("*.py")})
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


class _SharedCache(FunctionCache):
    """Numba's cache, used by one process at a time, and only for the same sources.

    Numba reads and writes a function's index without a lock. Two workers that compile two
    signatures at once give both the same number, and a later process gets wrong results without an
    error. Numba also ignores changes of the functions that a function calls. See README.md.
    """

    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        folder = Path(function.__code__.co_filename).parent
        self._cache_file._source_stamp = (self._cache_file._source_stamp, _source(folder))
        read_index = self._cache_file._load_index

        def readable_index() -> dict:
            """Return nothing if another version wrote it, with classes that are gone."""
            try:
                return read_index()
            except (ImportError, AttributeError, EOFError, pickle.UnpicklingError):
                return {}

        self._cache_file._load_index = readable_index

    def holds_any(self) -> bool:
        """Return whether the code for some signature is on disk."""
        with self._lock():
            return bool(self._cache_file._load_index())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._lock():
            return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        with self._lock():
            super().save_overload(sig, data)

    def _lock(self) -> FileLock:
        folder = Path(self.cache_path)
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / "compiled.lock", is_singleton=True)  # callees may load code too
