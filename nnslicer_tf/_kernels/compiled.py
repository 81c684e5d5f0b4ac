"""Compilation of inner loops by Numba, with machine code cached on disk for all processes."""

import functools
import hashlib
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock
from numba import njit, types
from numba.core.caching import FunctionCache

# For functions that are inlined into the compiled function that calls them.
_INLINED: dict[str, Any] = {
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
inlined = njit(**_INLINED)

KERNELS: list["_Compiled"] = []
"""Functions with a signature, from all imported modules."""


def compiled(signature: tuple | None = None, **options: Any) -> Callable[[Callable], Any]:
    """Return a decorator that compiles a function with Numba's `njit` at its first call.

    The function runs without the GIL, and is compiled once per machine: for Numba argument types
    `signature` only (so that a read-only array causes no other compilation), or for all that occur.
    """

    def compile_lazily(function: Callable) -> Any:
        dispatcher = njit(nogil=True, **options)(function)
        dispatcher._cache = _SharedCache(function)
        if signature is None:
            return dispatcher

        kernel = _Compiled(function, dispatcher, signature)
        KERNELS.append(kernel)
        return kernel

    return compile_lazily


def is_compiled(dispatcher: Any) -> bool:
    """Return whether a function without a signature has been compiled, here or on disk."""
    return bool(dispatcher.signatures) or dispatcher._cache.holds_any()


def argument(dtype: types.Type, dimensions: int) -> types.Array:
    """Return the type of a C-ordered array that is only read, and may be read-only."""
    return types.Array(dtype, dimensions, "C", readonly=True)


class _Compiled:
    """A function that is compiled for one signature when first called; then it is `ready`."""

    def __init__(self, function: Callable, dispatcher: Any, signature: tuple) -> None:
        functools.update_wrapper(self, function)
        self.ready = False
        self._dispatcher = dispatcher
        self._signature = signature
        self._compiling = threading.Lock()

    def compile(self) -> None:
        """Compile it, or load its machine code from disk, unless this was already done."""
        with self._compiling:  # other threads wait for the first one
            if not self.ready:
                self._dispatcher.compile(self._signature)
                self._dispatcher.disable_compile()
                self.ready = True

    def __call__(self, *args: Any) -> Any:
        if not self.ready:
            self.compile()
        return self._dispatcher(*args)


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
