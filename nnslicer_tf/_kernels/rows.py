"""Sparse rows of contributions."""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled


@compiled
def copy_nonzero(
    block: np.ndarray, first_column: int, places: np.ndarray, data: np.ndarray, indices: np.ndarray
) -> None:
    """Append the non-zero values of each row, and their columns, to sparse rows.

    The block is `(rows, columns)` and begins at `first_column`. `places`, int64, hold the
    index of the next value of each row, and advance.
    """
    for row in range(block.shape[0]):
        place = places[row]
        for column in range(block.shape[1]):
            if block[row, column] != 0:
                data[place] = block[row, column]
                indices[place] = first_column + column
                place += 1
        places[row] = place
