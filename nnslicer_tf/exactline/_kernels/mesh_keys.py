"""Compiled loops that compute keys of a planar mesh's vertices and edges.

Keys do not depend on rounding or on the order of the work. They identify common vertices on the
seams of tiles that were cut separately.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled

_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xBF58476D1CE4E5B9)
_C = np.uint64(0x94D049BB133111EB)


@compiled()
def hash_pair(x, y):
    """Return a key made from two keys, which depends on their order (SplitMix64)."""
    z = x * _A + y + _B
    z = (z ^ (z >> np.uint64(30))) * _B
    z = (z ^ (z >> np.uint64(27))) * _C
    return z ^ (z >> np.uint64(31))


@compiled()
def edge_key(x, y):
    """Return the key of an edge between vertices with the given keys, in any order."""
    return hash_pair(x, y) if x < y else hash_pair(y, x)


@compiled()
def edge_keys(start, loop, keys):
    """Return the key of the edge that begins at every corner."""
    out = np.empty(len(loop), np.uint64)
    for f in range(len(start) - 1):
        for c in range(start[f], start[f + 1]):
            after = c + 1 if c + 1 < start[f + 1] else start[f]
            out[c] = edge_key(keys[loop[c]], keys[loop[after]])
    return out


@compiled()
def grown(array, more):
    """Return an array with room for more than twice as many rows; `more` is not a literal."""
    bigger = np.empty((2 * len(array) + more, *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    return bigger
