"""Exact lines through sums, differences, maxima and minima of tensors."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from nnslicer_tf.exactline.bends import Bends, GradientTransformer, is_largest_tap, largest_tap
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.rules.table import register_transformer
from nnslicer_tf.exactline.steps import Steps, Uses
from nnslicer_tf.instrument.operations import Operation


class _AdditionLine:
    """The transformer of a sum of tensors, or of a difference of two."""

    def __init__(self, operation: Operation) -> None:
        self._combine = np.subtract if operation.kind == "subtract" else np.add
        self._shapes = operation.input_shapes
        self._taps = _broadcast_taps(operation)

    def __call__(self, *inputs: Curve) -> Curve:
        curves = [x.regrouped(shape) for x, shape in zip(inputs, self._shapes, strict=True)]
        rows = curves[0].common_rows(curves, self._taps)
        total = rows.gather(0, 0, len(rows))
        for i in range(1, len(inputs)):
            total = self._combine(total, rows.gather(i, 0, len(rows)))
        return rows.curve(total)

    def pull(self, g: Steps) -> list[Steps]:
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
        return Bends(len(self._shapes), np.array([-np.inf]))

    def window(self, *inputs: Curve) -> Curve:
        """Return the inputs side by side, negated for a minimum."""
        curves = [x.regrouped(shape) for x, shape in zip(inputs, self._shapes, strict=True)]
        rows = curves[0].common_rows(curves, self._taps)
        size = (len(rows), self._channels)
        parts = [self._sign * np.broadcast_to(c.values, size) for c in rows.gathered()]
        return rows.curve(np.hstack(parts))

    def finish(self, window: Curve) -> Curve:
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
            g = g.with_values(g.values.sum(axis=1, keepdims=True))
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


register_transformer("add", _AdditionLine)
register_transformer("subtract", _AdditionLine)
register_transformer("maximum_merge", _ExtremeLine)
register_transformer("minimum_merge", _ExtremeLine)
