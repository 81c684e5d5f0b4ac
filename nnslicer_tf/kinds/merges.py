"""Merges: sums, differences, products, maxima and minima of tensors, with broadcasting."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from nnslicer_tf._kernels import pointwise
from nnslicer_tf._lazy import LazyModule
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.bends import Bends, GradientTransformer, is_largest_tap, largest_tap
from nnslicer_tf.kinds.curve import Curve
from nnslicer_tf.kinds.kind import Kind, Neurons, Node, Rule, for_operation, register_kind
from nnslicer_tf.kinds.pointwise import passed_on
from nnslicer_tf.kinds.rescale import largest, midpoint
from nnslicer_tf.kinds.steps import Steps, Uses

ops: Any = LazyModule("keras.ops")


def _add(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    return _excluded(theta, signs, output, [x.delta for x in inputs])


def _subtract(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    first, *others = (x.delta for x in inputs)
    return _excluded(theta, signs, output, [first, *(-other for other in others)])


def _multiply(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB with local values Δx_i times the other factors (see `Neurons.factor`)."""
    values = []
    for i, x in enumerate(inputs):
        product = x.delta.astype(np.float64)
        for k, other in enumerate(inputs):
            if k != i:
                product = product * other.factor
        values.append(product)
    return _excluded(theta, signs, output, values)


def _excluded(
    theta: float, signs: np.ndarray, output: Neurons, values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Propagate CONTRIB, with exclusion, using the given local values of every output neuron."""
    shape = signs.shape
    stacked = np.empty((len(values), *shape))
    for place, part in zip(stacked, values, strict=True):
        place[...] = part
    stacked = stacked.reshape(len(values), -1)
    # A product is not linear: its local values do not add up to Δy.
    total = output.value.ravel() if output.relative_to == "output" else stacked.sum(axis=0)
    received = pointwise.merge(signs.ravel(), total, stacked, theta)
    return [r.reshape(shape) for r in received]


def _extreme(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB from a maximum or minimum to every input equal to it."""
    return [signs * x.sign * (x.value == output.value) for x in inputs]


def _channel_extreme(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Propagate CONTRIB to every input: the mean of maxima is not the maximum of means."""
    return [signs * x.sign for x in inputs]


def _add_at_zero(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list[Any]:
    return [g * s for s in signs]


def _subtract_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    return [g * signs[0], *(-g * s for s in signs[1:])]


def _multiply_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    received = []
    for i, s in enumerate(signs):
        product = g * s
        for k, name in enumerate(operation.inputs):
            if k != i:
                product = product * ops.sign(values[name])
        received.append(product)
    return received


def _extreme_at_zero(
    operation: Operation, g: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    y = values[operation.name]
    return [
        g * s * ops.cast(values[name] == y, "float32")
        for s, name in zip(signs, operation.inputs, strict=True)
    ]


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


class _AdditionLine:
    """The transformer of a sum of tensors, or of a difference of two."""

    def __init__(self, operation: Operation) -> None:
        self._combine = np.subtract if operation.kind == "subtract" else np.add
        self._shapes = operation.input_shapes
        self._taps = _broadcast_taps(operation)

    def __call__(self, *inputs: Curve) -> Curve:
        """Return the curve of the sum or difference; inputs are broadcast."""
        curves = [x.regrouped(shape) for x, shape in zip(inputs, self._shapes, strict=True)]
        rows = curves[0].common_rows(curves, self._taps)
        total = rows.gather(0, 0, len(rows))
        for i in range(1, len(inputs)):
            total = self._combine(total, rows.gather(i, 0, len(rows)))
        return rows.curve(total)

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradients of the inputs, given that of the output."""
        negative = g.scaled(np.array([[-1.0]])) if self._combine is np.subtract else g
        parts = [g, *[negative] * (len(self._shapes) - 1)]
        return _pull_broadcast(parts, self._shapes, self._taps)


class _ExtremeLine(GradientTransformer):
    """The transformer of a maximum or minimum of tensors."""

    def __init__(self, operation: Operation) -> None:
        self._sign = -1.0 if operation.kind == "minimum_merge" else 1.0
        self._shapes = operation.input_shapes
        self._taps = _broadcast_taps(operation)
        self._channels = operation.shape[-1]

    @property
    def bends(self) -> Bends:
        """Bends at which another input becomes the extreme."""
        return Bends(len(self._shapes), np.array([-np.inf]))

    def window(self, *inputs: Curve) -> Curve:
        """Return the inputs side by side, negated for a minimum."""
        curves = [x.regrouped(shape) for x, shape in zip(inputs, self._shapes, strict=True)]
        rows = curves[0].common_rows(curves, self._taps)
        size = (len(rows), self._channels)
        parts = [self._sign * np.broadcast_to(c.values, size) for c in rows.gathered()]
        return rows.curve(np.hstack(parts))

    def finish(self, window: Curve) -> Curve:
        """Return the maxima or minima."""
        return window.with_values(self._sign * largest_tap(window.values, len(self._shapes)))

    def slopes(self, middles: Curve) -> np.ndarray:
        """Return 1 for the input that is the extreme, 0 for all others."""
        return is_largest_tap(middles.values, len(self._shapes), -np.inf)

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradients of the inputs, given those of the inputs side by side."""
        ends = range(0, self._channels * len(self._shapes) + 1, self._channels)
        parts = [g.columns(first, last) for first, last in pairwise(ends)]
        return _pull_broadcast(parts, self._shapes, self._taps)


def _pull_broadcast(
    parts: Sequence[Steps], shapes: Sequence[tuple[int, ...]], taps: Sequence[np.ndarray]
) -> list[Steps]:
    """Return the gradients of inputs, given those of the inputs after broadcasting."""
    pulled = []
    for g, shape, table in zip(parts, shapes, taps, strict=True):
        if shape[-1] < g.channels:
            g = g.channel_sums()
        positions = int(np.prod(shape[:-1]))
        if positions < len(table):
            g = g.moved(Uses.of(table, positions), g.channels)
        pulled.append(g)
    return pulled


def _broadcast_taps(operation: Operation) -> list[np.ndarray]:
    """Return, for each input of a merge, the position that each output position reads."""
    out = operation.shape[:-1]
    tables = []
    for shape in operation.input_shapes:
        space = (1,) * (len(out) + 1 - len(shape)) + tuple(shape[:-1])
        own = np.arange(int(np.prod(space)), dtype=np.int32).reshape(space)
        tables.append(np.broadcast_to(own, out).reshape(-1, 1).copy())
    return tables


register_kind(
    Kind(
        "add",
        reach="element",
        rule=Rule(_add, _add),
        at_zero=_add_at_zero,
        rescale=midpoint,
        path=for_operation(_sum_path),
        line=_AdditionLine,
    )
)
register_kind(
    Kind(
        "subtract",
        reach="element",
        rule=Rule(_subtract, _subtract),
        at_zero=_subtract_at_zero,
        rescale=midpoint,
        path=for_operation(_sum_path),
        line=_AdditionLine,
    )
)
register_kind(
    Kind(
        "multiply",
        reach="element",
        rule=Rule(_multiply, _multiply),
        at_zero=_multiply_at_zero,
        multiplies=True,
        rescale=midpoint,
        path=for_operation(passed_on),
    )
)
for _kind, _rescale in (
    ("maximum_merge", largest),
    ("minimum_merge", partial(largest, further=lambda a, b: ops.minimum(a, b))),
):
    register_kind(
        Kind(
            _kind,
            reach="element",
            rule=Rule(_extreme, _channel_extreme),
            at_zero=_extreme_at_zero,
            rescale=_rescale,
            path=for_operation(_extreme_path),
            line=_ExtremeLine,
        )
    )
