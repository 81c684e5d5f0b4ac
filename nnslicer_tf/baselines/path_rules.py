"""Rules by which effective paths (Qiu et al., CVPR 2019) pass each kind of operation.

Additions (residual connections) and averages select among their inputs as weighted sums do; a
maximum takes every input equal to it; other operations propagate the path unchanged.
"""

from collections.abc import Callable, Sequence

import numpy as np

from nnslicer_tf._kernels import paths
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map
from nnslicer_tf.instrument.operations import Operation, Synapses

PathRule = Callable[[np.ndarray, np.ndarray, list[np.ndarray], float], Sequence[np.ndarray]]
"""`rule(path, output, inputs, theta)` for one sample: maps a bool array of the outputs that are on
the path, the operation's value and its inputs' values to bool arrays of the inputs on the path."""

_UNCHANGED = ("rectify", "elementwise", "scale", "multiply")
_SELECTING = ("add", "subtract", "maximum_merge", "minimum_merge", "average", "maximum", "routing")


def path_rule(operation: Operation) -> PathRule:
    """Return the rule of an operation; raise `UnsupportedLayerError` if its kind has none."""
    kind, params = operation.kind, operation.params
    if kind not in (*_UNCHANGED, *_SELECTING):
        raise UnsupportedLayerError(
            f"Effective paths have no rule for operation '{operation.name}' of kind '{kind}'."
        )
    sources = routing_map(operation).ravel() if kind == "routing" else np.zeros(0, int)

    def rule(
        path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
    ) -> Sequence[np.ndarray]:
        if kind in _UNCHANGED:
            return [path] * len(inputs)
        if kind in ("maximum_merge", "minimum_merge"):
            return [path & (x == y) for x in inputs]

        if kind in ("add", "subtract"):
            # For each neuron, the smallest set of positive summands that reaches θ · value.
            signs = [1] + [-1 if kind == "subtract" else 1] * (len(inputs) - 1)
            terms = np.stack(
                np.broadcast_arrays(*(s * x for s, x in zip(signs, inputs, strict=True)))
            )
            order = np.argsort(-terms, axis=0, kind="stable")
            ordered = np.maximum(np.take_along_axis(terms, order, axis=0), 0).astype(np.float64)
            before = np.cumsum(ordered, axis=0) - ordered
            chosen = np.zeros(terms.shape, bool)
            np.put_along_axis(chosen, order, (ordered > 0) & (before < theta * y), axis=0)
            return list(path & chosen)

        if kind == "routing":  # the path continues at the sources of the values on it
            sizes = [int(np.prod(shape)) for shape in operation.input_shapes]
            reached = np.zeros(sum(sizes), bool)
            used = sources[path.ravel()]
            reached[used[used != INSERTED]] = True
            parts = np.split(reached, np.cumsum(sizes)[:-1])
            return [p.reshape(s) for p, s in zip(parts, operation.input_shapes, strict=True)]

        (x,) = inputs
        reached = np.zeros(x.shape, bool)
        flat = [_flat(values) for values in (path, y, x, reached)]
        if kind == "maximum":
            paths.maximum(flat[0], flat[1], flat[2], params.taps, flat[3])
            return [reached]
        # The mean of k inputs reaches θ·y if their sum reaches k·θ·y.
        goal = flat[1] * (params.taps >= 0).sum(axis=1, keepdims=True) * theta
        channels = x.shape[-1]
        ones = np.ones((params.taps.shape[1], 1, channels), np.float32)
        unused = np.zeros(ones.shape, bool)
        paths.weighted_sum(flat[0], goal, flat[2], ones, params.taps, channels, flat[3], unused)
        return [reached]

    return rule


def path_through(
    operation: Operation,
    path: np.ndarray,
    goal: np.ndarray,
    x: np.ndarray,
    matrix: np.ndarray,
    used: np.ndarray,
) -> np.ndarray:
    """Mark the inputs of a weighted sum that are on the effective path, `(*input shape)` bool.

    `path` says whether each output is on the path, `goal` is the value that its contributors must
    reach, and `matrix` holds the weights `(taps, inputs per group, outputs)` float32. Sets `used`,
    bool of the same shape, to True for the synapses on the path.
    """
    kernel: Synapses = operation.params
    reached = np.zeros(x.shape, bool)
    flat = [_flat(values) for values in (path, goal, x)]
    paths.weighted_sum(*flat, matrix, kernel.taps, kernel.groups, _flat(reached), used)
    return reached


def _flat(values: np.ndarray) -> np.ndarray:
    """Return a view `(positions, channels)` of one sample's values."""
    return np.ascontiguousarray(values).reshape(-1, values.shape[-1])
