"""Sparse rows of contributions, collected by vector compression."""

import numpy as np
from numba import int32, int64, types

from nnslicer_tf._kernels.compiled import argument, compiled
from nnslicer_tf._kernels.vectors import (
    LANES,
    at,
    compress,
    count,
    lanes,
    load,
    pointer,
    read,
    splat,
    store,
    write,
)

# Number of values of a sparse row that are collected before they are copied to their place.
_RUN = 1024


def copy_nonzero(
    block: np.ndarray, first_column: int, places: np.ndarray, data: np.ndarray, indices: np.ndarray
) -> None:
    """Append the non-zero values of each row, and their columns, to sparse rows.

    The block is `(rows, columns)`, float32 or integers that fit into int32, and begins at
    `first_column`. `places`, int64, index where the next value of each row goes; they advance.
    """
    values, columns = np.empty((2, _RUN + LANES), np.int32)
    if data.dtype == np.float32:
        # Copied by their bits, which are 0 for the value 0.
        block = (np.ascontiguousarray(block, np.float32) + np.float32(0)).view(np.int32)
        data = data.view(np.int32)
    block = np.ascontiguousarray(block, np.int32)
    _copy_nonzero(block, first_column, places, data, indices, values, columns)


@compiled(
    (argument(int32, 2), types.intp, int64[::1], int32[::1], int32[::1], int32[::1], int32[::1])
)
def _copy_nonzero(block, first_column, places, data, indices, values, columns):
    rows, width = block.shape
    found_values, found_columns = pointer(values), pointer(columns)
    zero = splat(np.int32(0))
    for row in range(rows):
        source = at(pointer(block), row * width)
        for start in range(0, width, _RUN):
            stop = min(start + _RUN, width)
            whole = stop - (stop - start) % LANES
            found = 0
            for i in range(start, whole, LANES):
                value = load(source, i)
                there = (value > zero) | (value < zero)
                place = lanes() + splat(np.int32(first_column + i))
                store(found_values, found, compress(value, there))
                store(found_columns, found, compress(place, there))
                found += count(there)
            for i in range(whole, stop):
                write(found_values, found, read(source, i))
                write(found_columns, found, np.int32(first_column + i))
                found += np.int64(read(source, i) != 0)
            for i in range(found):
                data[places[row] + i] = values[i]
                indices[places[row] + i] = columns[i]
            places[row] += found
