"""The file format of the explorer: a JSON header and typed arrays, compressed with gzip.

A document is the gzip stream of the length of the header in bytes (uint32, little-endian), the
header (JSON in UTF-8: `format`, the list `arrays`, and the caller's entries), and the arrays, at
the offsets in the list. The header refers to an array by its index in the list.

Elements of several bytes are stored in *planes*: the first byte of every element, then the second,
and so on, which halves the compressed size of floats. An array with three axes is stored
`by_channel`, with its last axis first, if that is smaller.
"""

import gzip
import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

FORMAT = "nnslicer_tf explorer 3"
"""Name and version of the format; a page rejects data with another one."""

MAX_BYTES = 16_000_000  # Longer documents are compressed less, and seven times as fast
MAX_TRIAL = 500_000  # Number of elements of an array by which the order of its axes is chosen

_TYPES = {"i1": "<i1", "u1": "<u1", "i2": "<i2", "i4": "<i4", "f4": "<f4", "f8": "<f8"}
_LEVELS, _BITS = "q8", "b1"
_STEPS = 63


class Packer:
    """Collects arrays for a document; equal arrays are stored once."""

    def __init__(self) -> None:
        self._arrays: list[dict[str, Any]] = []
        self._chunks: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self._size = 0

    def add(self, array: np.ndarray) -> int:
        """Add an array and return its index.

        Integers and bools are stored in the smallest signed type that holds them all, floats as
        float32 unless they are float64.
        """
        array = np.asarray(array)
        if array.dtype.kind == "f":
            name = "f8" if array.dtype == np.float64 else "f4"
        else:
            name = "u1" if array.dtype == np.uint8 else _smallest(array)
        return self._store(array.astype(_TYPES[name]), name, array.shape)

    def add_levels(self, array: np.ndarray) -> int:
        """Add floats with seven bits each, with errors of at most 2 % of the largest magnitude."""
        array = np.asarray(array, np.float32)
        largest = float(np.abs(array).max(initial=0)) or 1.0
        # As the square roots of shares of that magnitude, so that small values are finer.
        levels = np.round(np.sign(array) * np.sqrt(np.abs(array) / largest) * _STEPS)
        return self._store(levels.astype(np.int8), _LEVELS, array.shape, largest=largest)

    def add_bits(self, array: np.ndarray) -> int:
        """Add bools with one bit each; they are read as 0 and 1."""
        array = np.asarray(array, bool)
        return self._store(np.packbits(array, bitorder="little"), _BITS, array.shape)

    def add_like(self, array: np.ndarray, like: np.ndarray, reference: int) -> int:
        """Add integers as differences from the signs of `like`, which was added as `reference`.

        A one-to-one operation's contributions are mostly these; if not, it is added on its own.
        """
        array = np.asarray(array)
        rest = array.astype(np.int64) - np.sign(np.asarray(like, np.int64))
        if np.count_nonzero(rest) >= np.count_nonzero(array):
            return self.add(array)
        name = _smallest(rest)
        return self._store(rest.astype(_TYPES[name]), name, array.shape, like=reference)

    def add_steps(self, array: np.ndarray) -> int:
        """Add integers as their differences, which makes index maps compress well."""
        array = np.asarray(array, np.int64)
        steps = np.diff(array.ravel(), prepend=0)
        name = _smallest(steps)
        return self._store(steps.astype(_TYPES[name]), name, array.shape, steps=True)

    def pack(self, header: Mapping[str, Any]) -> bytes:
        """Return the document; `header` can be stored as JSON."""
        whole = {"format": FORMAT, **header, "arrays": self._arrays}
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
        data = b"".join([struct.pack("<I", len(text)), text, *self._chunks])
        return gzip.compress(data, 9 if len(data) <= MAX_BYTES else 1, mtime=0)

    def _store(
        self, array: np.ndarray, name: str, shape: tuple[int, ...], **how: float | bool
    ) -> int:
        planes = _planes(array)
        if array.ndim == 3:
            part = array[: max(1, MAX_TRIAL // max(1, array[0].size))] if len(array) else array
            turned = _planes(np.moveaxis(part, -1, 0))
            if len(zlib.compress(turned, 1)) < len(zlib.compress(_planes(part), 1)):
                planes, how = _planes(np.moveaxis(array, -1, 0)), {**how, "by_channel": True}
        described = repr((name, shape, how)).encode()
        key = hashlib.blake2b(described + b"\0" + planes, digest_size=16).digest()
        if key not in self._known:
            self._known[key] = len(self._arrays)
            entry = {"type": name, "shape": list(shape), "start": self._size}
            self._arrays.append(entry | how)
            self._chunks.append(planes)
            self._size += len(planes)
        return self._known[key]


def _planes(array: np.ndarray) -> bytes:
    """Return the first byte of every element, then the second, and so on."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return data.reshape(-1, array.dtype.itemsize).T.tobytes()


def _smallest(array: np.ndarray) -> str:
    """Return the smallest signed type that holds all integers of an array."""
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    for name in ("i1", "i2"):
        limits = np.iinfo(_TYPES[name])
        if limits.min <= low and high <= limits.max:
            return name
    return "i4"
