"""Exact lines through index maps: reshaping, padding, concatenation and the like."""

from functools import cached_property
from itertools import pairwise

import numpy as np

from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.rules.table import register_transformer
from nnslicer_tf.exactline.steps import Steps, Uses
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map
from nnslicer_tf.instrument.operations import Operation


class RoutingLine:
    """The transformer of an index map: every output is an input, or zero.

    Padding, cropping, upsampling and concatenation are done by position, all other maps on whole
    tensors.

    Attributes:
        is_identity: Whether the operation changes at most the shape.
    """

    def __init__(self, operation: Operation) -> None:
        self._shapes = operation.input_shapes
        self._shape = operation.shape
        self._source = routing_map(operation).reshape(-1, operation.shape[-1])
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.is_identity = len(sizes) == 1 and np.array_equal(
            self._source.ravel(), np.arange(sizes[0])
        )
        self._taps = self._moved_positions(sizes)
        self._joins_channels = self._is_channel_join(sizes)

    def __call__(self, *inputs: Curve) -> Curve:
        """Return the curve of the moved values."""
        if self._taps is None and not self._joins_channels:
            return self._move_values(inputs)
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
        return self._pull_values(g)

    @cached_property
    def _uses(self) -> list[Uses]:
        positions = [int(np.prod(shape[:-1])) for shape in self._shapes]
        return [Uses.of(taps, n) for taps, n in zip(self._taps or [], positions, strict=True)]

    def _pull_values(self, g: Steps) -> list[Steps]:
        source = self._source.ravel()
        whole = g.regrouped(1, len(source))
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self._shapes)])
        values = np.zeros((ends[-1], len(whole.ratio)))
        moved = source != INSERTED
        np.add.at(values, source[moved], whole.values.T[moved])
        return [
            whole.with_values(np.ascontiguousarray(values[first:last].T))
            for first, last in pairwise(ends)
        ]

    def _move_values(self, inputs: tuple[Curve, ...]) -> Curve:
        whole = [x.regrouped((x.positions * x.channels,)) for x in inputs]
        rows = whole[0].common_rows(whole, [np.zeros((1, 1), np.int32)] * len(whole))
        values = np.hstack([curve.values for curve in rows.gathered()])
        source = self._source.ravel()
        moved = np.take(values, np.maximum(source, 0), axis=1)
        moved[:, source == INSERTED] = 0.0
        return rows.curve(moved)

    def _moved_positions(self, sizes: list[int]) -> list[np.ndarray] | None:
        """Return each input's taps if positions move with all their channels, else None."""
        channels = self._shape[-1]
        if any(shape[-1] != channels for shape in self._shapes):
            return None
        first = self._source[:, :1]
        expected = np.where(first == INSERTED, INSERTED, first + np.arange(channels))
        starts = first[first != INSERTED]
        if not np.array_equal(expected, self._source) or (starts % channels).any():
            return None
        begins = np.cumsum([0, *sizes])
        return [
            np.where((first >= begin) & (first < end), (first - begin) // channels, -1).astype(
                np.int32
            )
            for begin, end in pairwise(begins)
        ]

    def _is_channel_join(self, sizes: list[int]) -> bool:
        """Return whether the operation concatenates its inputs along the channels."""
        positions = len(self._source)
        if any(
            size != positions * shape[-1] for size, shape in zip(sizes, self._shapes, strict=True)
        ):
            return False
        begins = np.cumsum([0, *sizes])
        blocks = [np.arange(begin, end).reshape(positions, -1) for begin, end in pairwise(begins)]
        return np.array_equal(np.hstack(blocks), self._source)


register_transformer("routing", RoutingLine)
