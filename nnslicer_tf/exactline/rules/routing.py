"""Exact lines through index maps: reshaping, padding, concatenation and the like."""

from functools import cached_property
from itertools import pairwise

import numpy as np

from nnslicer_tf.exactline.bends import register_transformer
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.steps import Steps, Uses
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map
from nnslicer_tf.instrument.operations import Operation


def side_by_side(*inputs: Curve) -> Curve:
    """Return the values of several operations joined to one vector."""
    whole = [x.regrouped((x.positions * x.channels,)) for x in inputs]
    rows = whole[0].common_rows(whole, [np.zeros((1, 1), np.int32)] * len(whole))
    return rows.curve(np.hstack([curve.values for curve in rows.gathered()]))


class RoutingLine:
    """The transformer of an index map: every output is an input, or zero.

    Padding, cropping, upsampling and concatenation are done by position, others on whole tensors.
    `is_identity` tells whether the operation changes at most the shape.
    """

    def __init__(self, operation: Operation) -> None:
        self._shapes = [shape or (1,) for shape in operation.input_shapes]  # without axes: one
        self._shape = operation.shape or (1,)
        self._source = routing_map(operation).reshape(-1, self._shape[-1])
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        self._ends = ends = np.cumsum([0, *sizes])
        ordered = np.array_equal(self._source.ravel(), np.arange(sizes[0]))
        self.is_identity = len(sizes) == 1 and ordered

        # Positions that move with all their channels: each input's taps.
        channels = self._shape[-1]
        read = np.where(self._source == INSERTED, -1, self._source // channels)[:, :1]
        moved = np.where(read < 0, INSERTED, read * channels + np.arange(channels))
        self._taps: list[np.ndarray] | None = None
        if all(s[-1] == channels for s in self._shapes) and np.array_equal(moved, self._source):
            self._taps = [
                np.where((read >= begin) & (read < end), read - begin, -1).astype(np.int32)
                for begin, end in pairwise(ends // channels)
            ]

        # Inputs that are concatenated along the channels.
        positions = len(self._source)
        self._joins_channels = False
        if all(n == positions * x[-1] for n, x in zip(sizes, self._shapes, strict=True)):
            blocks = [np.arange(begin, end).reshape(positions, -1) for begin, end in pairwise(ends)]
            self._joins_channels = np.array_equal(np.hstack(blocks), self._source)

    def __call__(self, *inputs: Curve) -> Curve:
        """Return the curve of the moved values."""
        if self._taps is None and not self._joins_channels:
            whole, source = side_by_side(*inputs), self._source.ravel()
            moved = np.take(whole.values, np.maximum(source, 0), axis=1)
            moved[:, source == INSERTED] = 0.0
            return whole.with_values(moved)
        curves = [x.regrouped(shape) for x, shape in zip(inputs, self._shapes, strict=True)]
        same = np.arange(len(self._source), dtype=np.int32)[:, None]
        rows = curves[0].common_rows(curves, self._taps or [same] * len(curves))
        parts = [curve.values for curve in rows.gathered()]
        values = np.hstack(parts) if self._joins_channels else sum(parts[1:], start=parts[0])
        return rows.curve(values)

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradients of the inputs, given that of the output."""
        if self._taps is not None:
            return [g.moved(uses, g.channels) for uses in self._uses]
        if self._joins_channels:
            ends = np.cumsum([0, *(shape[-1] for shape in self._shapes)])
            return [g.columns(first, last) for first, last in pairwise(ends)]
        source = self._source.ravel()
        whole = g.regrouped(1, len(source))
        values = np.zeros((self._ends[-1], len(whole.ratio)))
        moved = source != INSERTED
        np.add.at(values, source[moved], whole.values.T[moved])
        parts = (np.ascontiguousarray(values[first:last].T) for first, last in pairwise(self._ends))
        return [whole.with_values(part) for part in parts]

    @cached_property
    def _uses(self) -> list[Uses]:
        positions = [int(np.prod(shape[:-1])) for shape in self._shapes]
        return [Uses.of(taps, n) for taps, n in zip(self._taps or [], positions, strict=True)]


register_transformer("routing", RoutingLine)
