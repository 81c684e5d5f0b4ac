"""Compiled loops for effective paths. All arrays are (positions, channels), C-ordered."""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled


@compiled
def weighted_sum(
    path: np.ndarray,
    goals: np.ndarray,
    inputs: np.ndarray,
    matrix: np.ndarray,
    taps: np.ndarray,
    groups: int,
    reached: np.ndarray,
    used: np.ndarray,
) -> None:
    """Select each path neuron's smallest set of positive contributions that reaches its goal.

    `matrix` is `(taps, inputs per group, outputs)`, `taps` the input positions `(output positions,
    taps)`, -1 for padding. `path`, bool, selects outputs; `reached` and `used`, bool, are set to
    True for inputs and synapses on the path.
    """
    tap_count, per_group, outputs = matrix.shape
    found = np.empty(tap_count * per_group)
    where = np.empty(tap_count * per_group, np.int64)
    for p in range(path.shape[0]):
        for o in range(outputs):
            if not path[p, o]:
                continue
            first = (o // (outputs // groups)) * per_group
            count = 0
            for t in range(tap_count):
                if taps[p, t] < 0:
                    continue
                for c in range(per_group):
                    value = np.float64(inputs[taps[p, t], first + c]) * matrix[t, c, o]
                    if value > 0:
                        found[count] = -value
                        where[count] = t * per_group + c
                        count += 1
            order = np.argsort(found[:count], kind="mergesort")
            total = 0.0
            for i in order:
                if total >= goals[p, o]:
                    break
                total -= found[i]
                t, c = divmod(where[i], per_group)
                used[t, c, o] = True
                reached[taps[p, t], first + c] = True


@compiled
def maximum(
    path: np.ndarray, outputs: np.ndarray, inputs: np.ndarray, taps: np.ndarray, reached: np.ndarray
) -> None:
    """Select every input that equals a maximum on the path."""
    for p in range(path.shape[0]):
        for t in range(taps.shape[1]):
            position = taps[p, t]
            if position < 0:
                continue
            for c in range(path.shape[1]):
                if path[p, c] and inputs[position, c] == outputs[p, c]:
                    reached[position, c] = True
