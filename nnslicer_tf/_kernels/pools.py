"""Loops over pooling windows: maxima, and means at channel granularity; and over sparse rows.

Values are `(batch, positions, channels)`, signs int8 of their shape; `taps` are the input positions
`(output positions, taps)` int32, -1 for padding.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled, writable


def maximum(
    signs: np.ndarray, y: np.ndarray, x: np.ndarray, x_signs: np.ndarray, taps: np.ndarray
) -> np.ndarray:
    """Expand a max pooling: every input of at least `y` gets the output's sign, as int32."""
    received = np.zeros(x.shape, np.int32)
    signs, x_signs = (writable(array, np.int8) for array in (signs, x_signs))
    y, x = (writable(array, np.float32) for array in (y, x))
    _maximum(signs, y, x, x_signs, taps, received)
    return received


@compiled
def _maximum(signs, y, x, x_signs, taps, received):
    for sample in range(x.shape[0]):
        for p in range(taps.shape[0]):
            for t in range(taps.shape[1]):
                source = taps[p, t]
                if source < 0:
                    continue
                for c in range(x.shape[2]):
                    # Without a branch, because the largest input cannot be predicted.
                    given = np.int32(x[sample, source, c] >= y[sample, p, c])
                    given *= np.int32(signs[sample, p, c]) * np.int32(x_signs[sample, source, c])
                    received[sample, source, c] += given


def tap_means(x: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Return the mean over positions of what each tap reads, `(batch, taps, inputs)` float64."""
    totals = np.zeros((len(x), taps.shape[1], x.shape[2]))
    _add_taps(x, taps, totals)
    return totals / len(taps)


@compiled
def _add_taps(x: np.ndarray, taps: np.ndarray, totals: np.ndarray) -> None:
    """Add up the values that each tap reads; NumPy would copy the values once per tap."""
    for sample in range(x.shape[0]):
        for p in range(taps.shape[0]):
            for t in range(taps.shape[1]):
                source = taps[p, t]
                if source >= 0:
                    for c in range(x.shape[2]):
                        totals[sample, t, c] += x[sample, source, c]


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
