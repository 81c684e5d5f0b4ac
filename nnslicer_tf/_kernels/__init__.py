"""Inner loops over NumPy arrays, compiled by Numba; without Keras, so that workers start fast.

Slicing uses `sums` and `pools`; the other modules support these. See README.md.
"""


def compile_all() -> None:
    """Compile all kernels, or load their machine code from disk, by calls with single values."""
    import numpy as np

    from nnslicer_tf._kernels import pools, sums

    one, sign, tap = (np.ones((1, 1, 1), t) for t in (np.float32, np.int8, np.int32))
    tap, places = 0 * tap[0], np.zeros(1, np.int64)
    sums.weighted_sum(sign, one, one, one, tap, 0.3, False)
    pools.maximum(sign, one, one, sign, tap)
    pools.tap_means(one, tap)
    pools.copy_nonzero(np.ones((1, 1), np.int32), 0, places, tap[0], tap[0])
