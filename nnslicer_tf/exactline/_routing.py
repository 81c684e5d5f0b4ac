"""The transformer of routing operations: values move, points stay."""

from itertools import pairwise

import numpy as np

from nnslicer_tf.exactline.curve import CommonRows, Curve, regrouped
from nnslicer_tf.instrument import Operation
from nnslicer_tf.instrument.routing import INSERTED, routing_map

__all__ = ["IndexMap"]


class IndexMap:
    """Every output is one input, or zero.

    Padding, cropping, upsampling and concatenation keep the positions apart; any other
    map is done on whole tensors.

    Attributes:
        is_identity: Whether nothing moves but the shape.
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
        """Return the moved values."""
        if self._taps is None and not self._joins_channels:
            return self._move_values(inputs)
        inputs = [regrouped(x, shape) for x, shape in zip(inputs, self._shapes, strict=True)]
        same = np.arange(len(self._source), dtype=np.int32)[:, None]
        rows = CommonRows(inputs, self._taps or [same] * len(inputs))
        parts = [curve.values for curve in rows.gathered()]
        values = np.hstack(parts) if self._joins_channels else sum(parts[1:], start=parts[0])
        return Curve(rows.lines, rows.start, rows.ratio, values)

    def _move_values(self, inputs: tuple[Curve, ...]) -> Curve:
        whole = [regrouped(x, (x.positions * x.channels,)) for x in inputs]
        rows = CommonRows(whole, [np.zeros((1, 1), np.int32)] * len(whole))
        values = np.hstack([curve.values for curve in rows.gathered()])
        source = self._source.ravel()
        moved = np.take(values, np.maximum(source, 0), axis=1)
        moved[:, source == INSERTED] = 0.0
        return Curve(rows.lines, rows.start, rows.ratio, moved)

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
        """Return whether the inputs' channels are laid side by side at every position."""
        positions = len(self._source)
        if any(
            size != positions * shape[-1] for size, shape in zip(sizes, self._shapes, strict=True)
        ):
            return False
        begins = np.cumsum([0, *sizes])
        blocks = [np.arange(begin, end).reshape(positions, -1) for begin, end in pairwise(begins)]
        return np.array_equal(np.hstack(blocks), self._source)
