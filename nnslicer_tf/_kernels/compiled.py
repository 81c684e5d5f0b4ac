"""Inner loops compiled by Numba, their machine code kept on disk for every process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock
from numba import njit
from numba.core.caching import FunctionCache


def compiled(**options: Any) -> Callable[[Callable], Any]:
    """Return a decorator that compiles a function with Numba's `njit`.

    The function runs without Python's lock, and is compiled once for each machine.

    Args:
        options: Further options of `njit`.
    """

    def compile_lazily(function: Callable) -> Any:
        dispatcher = njit(nogil=True, **options)(function)
        dispatcher._cache = _SharedCache(function)
        return dispatcher

    return compile_lazily


class _SharedCache(FunctionCache):
    """Numba's cache, used by one process at a time.

    Numba numbers the files of a function's signatures by an index that it reads and writes
    back without a lock. Two workers that compile two signatures at once give both the same
    number, and the function that a later process loads reads its arguments as if they were
    of the other's types: wrong results without an error. After a change of the source it writes
    the index before the code, so that who reads in between gets the old code for the new.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._lock():
            return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        with self._lock():
            super().save_overload(sig, data)

    def _lock(self) -> FileLock:
        folder = Path(self.cache_path)
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / "compiled.lock", is_singleton=True)  # what is called may load too
