"""Exact lines through sums, differences, maxima and minima of tensors."""

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import numpy as np

from nnslicer_tf.exactline import bends
from nnslicer_tf.exactline.curve import CommonRows, Curve
from nnslicer_tf.exactline.steps import Steps, Uses
from nnslicer_tf.instrument.operations import Operation


class _MergeLine:
    """A transformer whose inputs are broadcast to one shape."""

    def __init__(self, operation: Operation) -> None:
        self._shapes = [shape or (1,) for shape in operation.input_shapes]  # without axes: one
        self._channels = (operation.shape or (1,))[-1]
        # For each input, the position that each output position reads.
        out = operation.shape[:-1]
        self._taps = []
        for shape in self._shapes:
            space = (1,) * (len(out) + 1 - len(shape)) + tuple(shape[:-1])
            own = np.arange(int(np.prod(space)), dtype=np.int32).reshape(space)
            self._taps.append(np.broadcast_to(own, out).reshape(-1, 1).copy())

    def _rows(self, inputs: Sequence[Curve]) -> CommonRows:
        curves = [x.regrouped(shape) for x, shape in zip(inputs, self._shapes, strict=True)]
        return curves[0].common_rows(curves, self._taps)

    def _pull_broadcast(self, parts: Sequence[Steps]) -> list[Steps]:
        """Return the gradients of the inputs, given those of the inputs after broadcasting."""
        pulled = []
        for g, shape, taps in zip(parts, self._shapes, self._taps, strict=True):
            if shape[-1] < g.channels:
                g = g.with_values(g.values.sum(axis=1, keepdims=True))
            positions = int(np.prod(shape[:-1]))
            if positions < len(taps):
                g = g.moved(Uses.of(taps, positions), g.channels)
            pulled.append(g)
        return pulled


class _AdditionLine(_MergeLine):
    """The transformer of a sum of tensors, or of a difference of two."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation)
        self._combine = np.subtract if operation.kind == "subtract" else np.add

    def __call__(self, *inputs: Curve) -> Curve:
        rows = self._rows(inputs)
        return rows.curve(reduce(self._combine, (x.values for x in rows.gathered())))

    def pull(self, g: Steps) -> list[Steps]:
        negative = g.scaled(np.array([[-1.0]])) if self._combine is np.subtract else g
        return self._pull_broadcast([g, *[negative] * (len(self._shapes) - 1)])


class _ExtremeLine(bends.GradientTransformer, _MergeLine):
    """The transformer of a maximum or minimum of tensors."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation)
        self._sign = -1.0 if operation.kind == "minimum_merge" else 1.0

    @property
    def bends(self) -> bends.Bends:
        return bends.Bends(len(self._shapes), np.array([-np.inf]))

    def window(self, *inputs: Curve) -> Curve:
        """Return the inputs side by side, negated for a minimum."""
        rows = self._rows(inputs)
        size = (len(rows), self._channels)
        parts = [self._sign * np.broadcast_to(x.values, size) for x in rows.gathered()]
        return rows.curve(np.hstack(parts))

    def finish(self, window: Curve) -> Curve:
        return window.with_values(self._sign * bends.largest_tap(window.values, len(self._shapes)))

    def slopes(self, middles: Curve) -> np.ndarray:
        """Return 1 for the input that is the extreme, 0 for all others."""
        return bends.is_largest_tap(middles.values, len(self._shapes), -np.inf)

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradients of the inputs, given those of the inputs side by side."""
        ends = range(0, self._channels * len(self._shapes) + 1, self._channels)
        return self._pull_broadcast([g.columns(*columns) for columns in pairwise(ends)])


bends.register_transformer("add", _AdditionLine)
bends.register_transformer("subtract", _AdditionLine)
bends.register_transformer("maximum_merge", _ExtremeLine)
bends.register_transformer("minimum_merge", _ExtremeLine)
