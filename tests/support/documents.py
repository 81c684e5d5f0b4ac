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
        kind = np.dtype({"q8": "i1", **packing._TYPES}[entry["type"]])
        size, start = int(np.prod(entry["shape"])), 4 + length + entry["start"]
        values = np.frombuffer(raw, kind, size, start)
        if entry["type"] == "q8":
            levels = values.astype(np.float32)
            values = np.sign(levels) * (levels / packing._STEPS) ** 2 * np.float32(entry["largest"])
        arrays.append(values.reshape(entry["shape"]))
    return header, arrays
