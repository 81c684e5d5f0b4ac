"""Digests of arrays, used to check that stored results belong to the same data."""

import hashlib
from collections.abc import Iterable

import numpy as np


def digest(parts: Iterable[bytes | np.ndarray]) -> str:
    """Return a hash of bytes and of arrays' values, as 32 hexadecimal digits.

    Shapes and dtypes do not affect it.
    """
    known = hashlib.blake2b(digest_size=16)
    for part in parts:
        known.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return known.hexdigest()
