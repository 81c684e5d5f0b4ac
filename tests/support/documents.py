"""Reads the explorer's documents, as its page does."""

import gzip
import json
import struct

import numpy as np

from nnslicer_tf.report.explorer import packing


def unpack(data):
    """Return the header and the arrays of a document."""
    raw = gzip.decompress(data)
    (length,) = struct.unpack_from("<I", raw)
    header = json.loads(raw[4 : 4 + length])
    assert header["format"] == packing.FORMAT
    arrays = []
    for entry in header["arrays"]:
        kind = np.dtype({"q8": "i1", "b1": "u1", **packing._TYPES}[entry["type"]])
        size, start = int(np.prod(entry["shape"])), 4 + length + entry["start"]
        if entry["type"] == "b1":
            bits = np.frombuffer(raw, np.uint8, -(-size // 8), start)
            values = np.unpackbits(bits, count=size, bitorder="little").astype(np.int8)
        else:
            planes = np.frombuffer(raw, np.uint8, size * kind.itemsize, start)
            planes = np.ascontiguousarray(planes.reshape(kind.itemsize, -1).T)
            values = planes.view(kind).ravel()
        if entry.get("by_channel"):
            values = values.reshape(entry["shape"][-1], -1).T.ravel()
        if entry["type"] == "q8":
            levels = values.astype(np.float32)
            values = np.sign(levels) * (levels / packing._STEPS) ** 2 * np.float32(entry["largest"])
        if entry.get("steps"):
            values = np.cumsum(values, dtype=np.int64)
        if "like" in entry:
            values = values + np.sign(arrays[entry["like"]]).ravel()
        arrays.append(values.reshape(entry["shape"]))
    return header, arrays
