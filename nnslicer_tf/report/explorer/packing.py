"""The file format of the explorer: a JSON header and typed arrays, compressed with gzip.

A packed document is the gzip stream of

1. the length of the header in bytes, uint32, little-endian;
2. the header, JSON in UTF-8, with the `format` and a list `arrays` beside what the caller put in;
3. the arrays, one after the other, at the offsets that the list gives.

Elsewhere in the header an array is referred to by its place in that list. An array of more than
one byte an element is stored in *planes*, first the first byte of every element, then the
second and so on: bytes that are alike stand together, which halves what gzip leaves of floats.
"""

import gzip
import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnslicer_tf.errors import CorruptFileError

FORMAT = "nnslicer_tf explorer 1"
"""Name and version of the format; a page refuses data of another one."""

_TYPES = {"i1": "<i1", "u1": "<u1", "i2": "<i2", "i4": "<i4", "f4": "<f4", "f8": "<f8"}
_ROUNDED = "bf16"


class Packer:
    """Collects arrays for a document; equal arrays are stored once."""

    def __init__(self) -> None:
        self._arrays: list[dict[str, Any]] = []
        self._chunks: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self._size = 0

    def add(self, array: np.ndarray) -> int:
        """Add an array and return the number that refers to it.

        Whole numbers and bools are stored in the smallest signed type that holds them all,
        floats as float32, unless they are float64.
        """
        array = np.asarray(array)
        if array.dtype.kind == "f":
            name = "f8" if array.dtype == np.float64 else "f4"
        else:
            name = "u1" if array.dtype == np.uint8 else _smallest(array)
        return self._store(array.astype(_TYPES[name]), name, array.shape)

    def add_rounded(self, array: np.ndarray) -> int:
        """Add floats rounded to bfloat16, two bytes each: they keep an accuracy of 0.4 %."""
        array = np.asarray(array, np.float32)
        bits = array.view(np.uint32).astype(np.uint64)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return self._store(nearest.astype("<u2"), _ROUNDED, array.shape)

    def add_steps(self, array: np.ndarray) -> int:
        """Add whole numbers as the steps between them: index maps compress well like this."""
        array = np.asarray(array, np.int64)
        steps = np.diff(array.ravel(), prepend=0)
        name = _smallest(steps)
        return self._store(steps.astype(_TYPES[name]), name, array.shape, steps=True)

    def pack(self, header: Mapping[str, Any]) -> bytes:
        """Return the document.

        Args:
            header: Values that JSON can hold.
        """
        whole = {"format": FORMAT, **header, "arrays": self._arrays}
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
        parts = [struct.pack("<I", len(text)), text, *self._chunks]
        return gzip.compress(b"".join(parts), compresslevel=9, mtime=0)

    def _store(
        self, array: np.ndarray, name: str, shape: tuple[int, ...], steps: bool = False
    ) -> int:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        planes = data.reshape(-1, array.dtype.itemsize).T.tobytes()
        key = hashlib.blake2b(planes, digest_size=16, key=f"{name}{shape}{steps}".encode()).digest()
        if key not in self._known:
            self._known[key] = len(self._arrays)
            entry = {"type": name, "shape": list(shape), "start": self._size}
            self._arrays.append(entry | ({"steps": True} if steps else {}))
            self._chunks.append(planes)
            self._size += len(planes)
        return self._known[key]


def unpack(data: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the header and the arrays of a packed document.

    Raises:
        CorruptFileError: if the data is damaged, or of another format.
    """
    try:
        raw = gzip.decompress(data)
        (length,) = struct.unpack_from("<I", raw)
        header = json.loads(raw[4 : 4 + length])
        if header["format"] != FORMAT:
            raise CorruptFileError(
                f"The format is {header['format']!r}, this version reads {FORMAT!r}."
            )
        return header, [_read(raw, 4 + length, entry) for entry in header["arrays"]]
    except (OSError, EOFError, ValueError, KeyError, TypeError, struct.error) as error:
        raise CorruptFileError(f"This is no data of the explorer: {error}") from error


def _read(raw: bytes, offset: int, entry: Mapping[str, Any]) -> np.ndarray:
    kind = np.dtype("<u2" if entry["type"] == _ROUNDED else _TYPES[entry["type"]])
    size = int(np.prod(entry["shape"]))
    planes = np.frombuffer(raw, np.uint8, size * kind.itemsize, offset + entry["start"])
    values = np.ascontiguousarray(planes.reshape(kind.itemsize, -1).T).view(kind).ravel()
    if entry["type"] == _ROUNDED:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if entry.get("steps"):
        values = np.cumsum(values, dtype=np.int64)
    return values.reshape(entry["shape"])


def _smallest(array: np.ndarray) -> str:
    """Return the smallest signed type that holds all whole numbers of an array."""
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    for name in ("i1", "i2"):
        limits = np.iinfo(_TYPES[name])
        if limits.min <= low and high <= limits.max:
            return name
    return "i4"
