"""The exclusion of sums of products and of softmax rows, as weighted sums (see `sums`).

A product-sum has two local values for each product: first Δa·b for all products, then a·Δb. So it
is a weighted sum of [Δa, a] whose weights are [b, Δb]. Those of softmax output i are weighted sums
of Δx whose weights are y_i · (δ_ij − y_j). With `by_sum`, the exclusion is relative to the sum of
the local values instead of y.
"""

import numpy as np

from nnslicer_tf._kernels.sums import weighted_sum

# Number of weights of softmax rows that are formed at a time, so that they stay in the L2 cache.
_TOGETHER = 1 << 18


def product_sum(
    signs: np.ndarray,
    y: np.ndarray,
    first: tuple[np.ndarray, np.ndarray],
    second: tuple[np.ndarray, np.ndarray],
    theta: float,
    by_sum: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Expand sums y[g, m, n] = Σ_s a[g, m, s] · b[g, n, s] into CONTRIB of a and b, int32.

    `signs` are sign(CONTRIB · Δy), `(groups, m, n)` int8; samples are groups as well. `first` holds
    the values and Δ of a, `(groups, m, s)` float32, `second` those of b.
    """
    groups, rows, _ = y.shape
    size = first[0].shape[-1]
    read, weights = np.concatenate([first[1], first[0]], -1), np.concatenate(second, -1)

    def as_channels(x: np.ndarray) -> np.ndarray:
        return x.transpose(1, 0, 2).reshape(1, rows, -1)

    inputs, synapses = weighted_sum(
        as_channels(signs),
        as_channels(y),
        as_channels(read),
        weights,
        np.arange(rows, dtype=np.int32)[:, None],
        theta,
        False,
        by_sum,
    )
    to_read = inputs.reshape(rows, groups, -1).transpose(1, 0, 2)
    to_a, to_b = to_read[..., :size], synapses[0][..., size:]
    return np.ascontiguousarray(to_a), np.ascontiguousarray(to_b)


def softmax(
    signs: np.ndarray, y: np.ndarray, delta: np.ndarray, theta: float, by_sum: bool
) -> np.ndarray:
    """Expand softmax rows: the local values of output i are y_i · (δ_ij − y_j) · Δx_j.

    All arrays are `(rows, entries)`: `signs` = sign(CONTRIB · Δy) int8, probabilities `y` and the
    inputs' Δ (0 for masked entries) float32, the result int32.
    """
    rows, entries = y.shape
    received = np.zeros(y.shape, np.int32)
    step = max(1, _TOGETHER // max(entries**2, 1))
    diagonal = np.arange(entries)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        # 1 − y_i is computed as the sum of the others: near 1, the difference is only rounding.
        own = y[part].astype(np.float32)
        before, after = (np.cumsum(side, axis=1, dtype=np.float64) for side in (own, own[:, ::-1]))
        rest = np.zeros(own.shape)
        rest[:, 1:] = before[:, :-1]
        rest[:, :-1] += after[:, -2::-1]
        weights = -own[:, :, None] * own[:, None]
        weights[:, diagonal, diagonal] = own * rest.astype(np.float32)
        flat = (1, 1, -1)
        inputs, _ = weighted_sum(
            signs[part].reshape(flat),
            own.reshape(flat),
            delta[part].reshape(flat),
            weights,
            np.zeros((1, 1), np.int32),
            theta,
            False,
            by_sum,
        )
        received[part] = inputs.reshape(own.shape)
    return received
