"""The weighted-sum rule as one would write it first in NumPy: the reference for speed.

All local values of the active neurons of an operation are materialised in float64,
sorted by magnitude with `argsort`, and summed up with `cumsum`.
"""

import numpy as np

CHUNK_VALUES = 1 << 22


def weighted_sum(
    signs: np.ndarray,
    y: np.ndarray,
    dx: np.ndarray,
    weights: np.ndarray,
    taps: np.ndarray,
    theta: float,
    each: bool,
    by_sum: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Do what `nnslicer_tf._kernels.sums.weighted_sum` does, with the same arguments."""
    groups, outputs, width = weights.shape
    per_group = dx.shape[2] // groups
    inputs = np.zeros((len(dx), dx.shape[1] + 1, dx.shape[2]), np.int32)
    synapses = np.zeros((len(dx) if each else 1, *weights.shape), np.int32)
    padded = np.concatenate([dx, np.zeros_like(dx[:, :1])], axis=1)
    for sample in range(len(dx)):
        for group in range(groups):
            channels = slice(group * per_group, (group + 1) * per_group)
            windows = padded[sample][taps, channels].reshape(len(taps), width)
            of_group = signs[sample, :, group * outputs : (group + 1) * outputs]
            positions, neurons = np.nonzero(of_group)
            step = max(1, CHUNK_VALUES // width)
            for start in range(0, len(positions), step):
                p, o = positions[start : start + step], neurons[start : start + step]
                sign = of_group[p, o].astype(np.int32)[:, None]
                v = (weights[group, o] * windows[p]).astype(np.float64)
                reference = v.sum(axis=1) if by_sum else y[sample, p, group * outputs + o]
                threshold = theta * np.abs(reference.astype(np.float64))
                received = _kept(v, threshold[:, None]) * np.sign(v).astype(np.int32) * sign
                np.add.at(synapses[sample if each else 0, group], o, received)
                by_tap = received.reshape(len(p), taps.shape[1], per_group)
                np.add.at(inputs[sample, :, channels], taps[p], by_tap)
    return inputs[:, :-1], synapses


def _kept(v: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    order = np.argsort(np.abs(v), axis=1, kind="stable")
    running = np.abs(np.cumsum(np.take_along_axis(v, order, axis=1), axis=1))
    below = running < threshold
    rank = np.arange(1, v.shape[1] + 1)
    excluded = (below * rank).max(axis=1, keepdims=True)
    kept = np.zeros(v.shape, bool)
    np.put_along_axis(kept, order, rank > excluded, axis=1)
    return kept
