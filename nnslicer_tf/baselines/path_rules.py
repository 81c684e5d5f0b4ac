"""Rules by which effective paths (Qiu et al., CVPR 2019) pass each kind of operation."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from nnslicer_tf._kernels import paths
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map
from nnslicer_tf.instrument.operations import Operation, Synapses

PathRule = Callable[[np.ndarray, np.ndarray, list[np.ndarray], float], Sequence[np.ndarray]]
"""`rule(path, output, inputs, theta)` for one sample: maps a bool array of the outputs that are on
the path, the operation's value and its inputs' values to bool arrays of the inputs on the path."""


def path_rule(operation: Operation) -> PathRule:
    """Return the rule of an operation.

    Raises:
        UnsupportedLayerError: if effective paths have none for its kind.
    """
    if operation.kind == "routing":
        return _Routing(operation)
    if operation.kind not in _RULES:
        raise UnsupportedLayerError(
            f"Effective paths have no rule for operation '{operation.name}' of kind "
            f"'{operation.kind}'."
        )
    return partial(_RULES[operation.kind], operation)


def _passed_on(
    operation: Operation, path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
) -> list[np.ndarray]:
    """Return the effective path unchanged, for every input."""
    return [path] * len(inputs)


def _sum_path(
    operation: Operation, path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
) -> list[np.ndarray]:
    """Select, for each neuron, the smallest set of positive summands that reaches θ · value."""
    factors = [1] + [-1 if operation.kind == "subtract" else 1] * (len(inputs) - 1)
    parts = np.broadcast_arrays(*(s * v for s, v in zip(factors, inputs, strict=True)))
    return list(path & _smallest_sets(np.stack(parts), theta * y))


def _extreme_path(
    operation: Operation, path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
) -> list[np.ndarray]:
    return [path & (v == y) for v in inputs]


def _smallest_sets(contributions: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """Mark which contributions (k, …) are in the smallest sets that reach the goals (…)."""
    order = np.argsort(-contributions, axis=0, kind="stable")
    ordered = np.maximum(np.take_along_axis(contributions, order, axis=0), 0).astype(np.float64)
    before = np.cumsum(ordered, axis=0) - ordered
    taken = (ordered > 0) & (before < goals)
    chosen = np.zeros(contributions.shape, bool)
    np.put_along_axis(chosen, order, taken, axis=0)
    return chosen


def _average_path(
    operation: Operation, path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
) -> list[np.ndarray]:
    """Select inputs as for a sum: the mean of k inputs reaches θ·y if their sum reaches k·θ·y."""
    taps = operation.params.taps
    count = (taps >= 0).sum(axis=1, keepdims=True)
    (x,) = inputs
    reached = np.zeros(x.shape, bool)
    channels = x.shape[-1]
    ones = np.ones((taps.shape[1], 1, channels), np.float32)
    paths.weighted_sum(
        flat_sample(path),
        flat_sample(y) * count * theta,
        flat_sample(x),
        ones,
        taps,
        channels,
        flat_sample(reached),
        np.zeros(ones.shape, bool),
    )
    return [reached]


def _maximum_path(
    operation: Operation, path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
) -> list[np.ndarray]:
    (x,) = inputs
    reached = np.zeros(x.shape, bool)
    paths.maximum(
        flat_sample(path),
        flat_sample(y),
        flat_sample(x),
        operation.params.taps,
        flat_sample(reached),
    )
    return [reached]


class _Routing:
    """The effective-path rule: the path continues at the sources of the values on it."""

    def __init__(self, operation: Operation) -> None:
        self._sources = routing_map(operation).ravel()
        self._shapes = operation.input_shapes

    def __call__(
        self, path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
    ) -> list[np.ndarray]:
        sources = self._sources[path.ravel()]
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        reached = np.zeros(sum(sizes), bool)
        reached[sources[sources != INSERTED]] = True
        parts = np.split(reached, np.cumsum(sizes)[:-1])
        return [p.reshape(s) for p, s in zip(parts, self._shapes, strict=True)]


def path_through(
    operation: Operation,
    path: np.ndarray,
    goal: np.ndarray,
    x: np.ndarray,
    matrix: np.ndarray,
    used: np.ndarray,
) -> np.ndarray:
    """Mark the inputs of a weighted sum that are on the effective path, `(*input shape)` bool.

    Args:
        operation: The weighted sum.
        path: Whether each of its outputs is on the path, bool.
        goal: Values that the outputs' contributors must reach, of the same shape.
        x: The inputs' values.
        matrix: Weights `(taps, inputs per group, outputs)` float32.
        used: Changed in place: set to True for the synapses on the path; bool, of the shape of
            `matrix`.
    """
    kernel: Synapses = operation.params
    reached = np.zeros(x.shape, bool)
    paths.weighted_sum(
        flat_sample(path),
        flat_sample(goal),
        flat_sample(x),
        matrix,
        kernel.taps,
        kernel.groups,
        flat_sample(reached),
        used,
    )
    return reached


def flat_sample(values: np.ndarray) -> np.ndarray:
    """Return a view `(positions, channels)` of one sample's values."""
    return np.ascontiguousarray(values).reshape(-1, values.shape[-1])


_RULES: dict[str, Callable[..., list[np.ndarray]]] = {
    "rectify": _passed_on,
    "elementwise": _passed_on,
    "scale": _passed_on,
    "multiply": _passed_on,
    "add": _sum_path,
    "subtract": _sum_path,
    "maximum_merge": _extreme_path,
    "minimum_merge": _extreme_path,
    "average": _average_path,
    "maximum": _maximum_path,
}
