"""The file format of the explorer: a JSON header and typed arrays, compressed with gzip.

A document is the gzip stream of the length of the header in bytes (uint32, little-endian), the
header (JSON in UTF-8: `format`, the list `arrays`, and the caller's entries), and the arrays, at
the offsets in the list. The header refers to an array by its index in the list.
"""

import gzip
import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

FORMAT = "nnslicer_tf explorer 5"
"""Name and version of the format; a page rejects data with another one."""

LEVEL = 6  # of compression; 9 takes several times as long, and saves 1 % of the size
_TYPES = {"i1": "<i1", "u1": "<u1", "i2": "<i2", "i4": "<i4", "f4": "<f4", "f8": "<f8"}
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
        elif array.dtype == np.uint8:
            name = "u1"
        else:  # -1 - x takes as many bits as x
            least = min(int(array.min(initial=0)), -1 - int(array.max(initial=0)))
            name = f"i{np.min_scalar_type(least).itemsize}"
        return self._store(array.astype(_TYPES[name]), name)

    def add_levels(self, array: np.ndarray) -> int:
        """Add floats with seven bits each, with errors of at most 2 % of the largest magnitude."""
        array = np.asarray(array, np.float32)
        largest = float(np.abs(array).max(initial=0)) or 1.0
        # As the square roots of shares of that magnitude, so that small values are finer.
        levels = np.round(np.sign(array) * np.sqrt(np.abs(array) / largest) * _STEPS)
        return self._store(levels.astype(np.int8), "q8", largest=largest)

    def pack(self, header: Mapping[str, Any]) -> bytes:
        """Return the document; `header` can be stored as JSON."""
        whole = {"format": FORMAT, **header, "arrays": self._arrays}
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
        data = b"".join([struct.pack("<I", len(text)), text, *self._chunks])
        return gzip.compress(data, LEVEL, mtime=0)

    def _store(self, array: np.ndarray, name: str, **how: float) -> int:
        content = array.tobytes()
        described = repr((name, array.shape, how)).encode()
        key = hashlib.blake2b(described + b"\0" + content, digest_size=16).digest()
        if key not in self._known:
            self._known[key] = len(self._arrays)
            entry = {"type": name, "shape": list(array.shape), "start": self._size}
            self._arrays.append(entry | how)
            self._chunks.append(content)
            self._size += len(content)
        return self._known[key]
