"""`LineWalker`: propagates lines through a network, operation by operation.

Each operation adds points where it changes its affine piece. The cost per operation is its
matrix product over the points so far, and one pass over all values to find crossings.

Memory is bounded, whatever the number of points: points are walked in chunks of consecutive
points, and a chunk that has grown too large is split in two, one of which is finished before the
other continues. A chunk has `CHUNK` values, or `FEWEST` points if the network is very wide; the
number of waiting chunks is at most that of operations times the logarithm of the growth. Chunks
are distributed over threads, one per core.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_count, check_points
from nnslicer_tf._environment import one_thread_a_product
from nnslicer_tf.errors import InputShapeError, NonFiniteActivationError, TooManyRegionsError
from nnslicer_tf.exactline._gradient_walk import LineTrace, TraceRecorder
from nnslicer_tf.exactline._kernels import lines as _kernels
from nnslicer_tf.exactline._program import LineStep, joined_program, line_program
from nnslicer_tf.exactline._workers import run_splitting
from nnslicer_tf.exactline.bends import pulls_gradients
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.partition import LinearPartition
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.model import ModelLike

CHUNK = 1 << 18  # live float64 values in a chunk: 2 MB, which fits into a cache
FEWEST = 8  # smallest number of points in a chunk, as each cut adds one
_NOISE = 1e-13  # smaller bends, relative to a line's largest output, count as rounding errors


def exact_line(
    im: ModelLike, start: np.ndarray, end: np.ndarray, *, max_parts: int | None = None
) -> LinearPartition:
    """Partition the segment from start to end so that the network is affine on every part.

    The model's walker is kept, and reused until the weights change.

    Args:
        im: The model; a Keras model also works. A final softmax or sigmoid is ignored.
        start: A point of the input space, of the model's input shape (q in the paper).
        end: Another one, of the same shape (r in the paper).
        max_parts: Stop with an error if the line has more parts, counting those, too, that are
            joined at the end because the output does not bend between them. The time grows with
            the number of parts.

    Returns:
        The partition, with all points where the network changes its affine piece, and both
        ends (Sotoudeh and Thakur 2019, definition 1).

    Raises:
        UnsupportedLayerError: if an operation is not piecewise linear; the message names it.
        InputShapeError: if start or end has another shape than the model's input.
        NonFiniteActivationError: if start, end or the network's outputs are NaN or infinite.
        TooManyRegionsError: if the line has more than `max_parts`.
    """
    im = instrumented(im)
    return im.prepared(LineWalker, lambda: LineWalker(im)).line(start, end, max_parts)


def exact_lines(im: ModelLike, start: np.ndarray, end: np.ndarray) -> list[LinearPartition]:
    """Partition many segments in one walk.

    A polyline through `vertices` has the segments from `vertices[:-1]` to `vertices[1:]`.

    Args:
        im: The model; a Keras model also works.
        start: `(lines, *input shape)`.
        end: As many points.

    Raises:
        UnsupportedLayerError, InputShapeError, NonFiniteActivationError: as `exact_line`.
    """
    im = instrumented(im)
    return im.prepared(LineWalker, lambda: LineWalker(im)).lines(start, end)


class LineWalker:
    """A model prepared for exact lines; later changes of its weights have no effect.

    Args:
        im: The model.
        fuse: Treat consecutive ReLU and max pooling as one operation, which gives fewer points.
        every_crossing: Also keep the points at which an operation changes its affine piece but
            the network's output does not bend.
        workers: Number of threads for long work; 0 for as many as there are cores. The
            result does not depend on it.

    Raises:
        UnsupportedLayerError: if an operation before the logits is not piecewise linear.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        *,
        fuse: bool = True,
        every_crossing: bool = False,
        workers: int = 0,
    ) -> None:
        self.input_shape = im.input_shape
        self.output_shape = im[im.logit_operation].shape
        self._program = line_program(im, fuse)
        self._every_crossing = every_crossing
        self._workers = workers

    @classmethod
    def of_several(cls, models: Sequence[InstrumentedModel], **options: Any) -> "LineWalker":
        """Return a walker of several models at once, with all their logits as outputs.

        Args:
            models: Models with inputs of the same shape, and vectors as outputs.
            options: The arguments of a walker.
        """
        walker = cls(models[0], **options)
        walker.output_shape = (sum(im[im.logit_operation].size for im in models),)
        walker._program = joined_program(models, options.get("fuse", True))
        return walker

    def line(
        self, start: np.ndarray, end: np.ndarray, max_parts: int | None = None
    ) -> LinearPartition:
        """Partition one segment; see `exact_line`."""
        start = check_points(start, "start", self.input_shape)
        end = check_points(end, "end", self.input_shape)
        return self._walk_lines(start[None], end[None], max_parts)[0]

    def lines(self, start: np.ndarray, end: np.ndarray) -> list[LinearPartition]:
        """Partition many segments in one walk; see `exact_lines`."""
        start = check_points(start, "start", self.input_shape, 1)
        end = check_points(end, "end", self.input_shape, 1)
        if start.shape != end.shape:
            raise InputShapeError(
                "start and end must have the same number of points. "
                f"Received: start of shape {start.shape}, end of shape {end.shape}"
            )
        return self._walk_lines(start, end)

    @property
    def can_trace(self) -> bool:
        """Whether `traced` works: whether all transformers propagate gradients back."""
        return all(pulls_gradients(step.transformer) for step in self._program.steps)

    def traced(
        self, start: np.ndarray, end: np.ndarray, max_parts: int | None = None
    ) -> tuple[LinearPartition, LineTrace]:
        """Partition one segment, and keep what its gradients depend on.

        Args:
            start: As for `line`.
            end: As for `line`.
            max_parts: As for `exact_line`.
        """
        start = check_points(start, "start", self.input_shape)
        end = check_points(end, "end", self.input_shape)
        recorder = TraceRecorder()
        ends = _ends(start[None], end[None])
        parts = [outputs for _, outputs in self._walk(ends, recorder.apply, max_parts)]
        return self._partition(start, end, parts), recorder.trace(
            self._program, ends, self._workers
        )

    def _walk_lines(
        self, start: np.ndarray, end: np.ndarray, max_parts: int | None = None
    ) -> list[LinearPartition]:
        if not len(start):
            return []
        pieces: list[list[Curve]] = [[] for _ in start]
        for first, outputs in self._walk(_ends(start, end), _apply, max_parts):
            for line in range(outputs.lines):
                pieces[first + line].append(_one_line(outputs, line))
        return [self._partition(*line) for line in zip(start, end, pieces, strict=True)]

    def _walk(
        self,
        ends: Curve,
        apply: Callable[[LineStep, list[Curve]], Curve],
        max_parts: int | None,
    ) -> list[tuple[int, Curve]]:
        """Return (first line, outputs) of each chunk, in the order of lines and ratios."""
        if max_parts is not None:
            check_count("max_parts", max_parts)
        finished: list[tuple[int, float, Curve]] = []

        def finish(chunk: _Chunk, waiting: list[_Chunk]) -> None:
            while chunk.next_step < len(self._program.steps):
                if chunk.is_large:
                    chunk, second = chunk.split()
                    waiting.append(second)
                else:
                    self._advance(chunk, apply)
            outputs = chunk.curves[self._program.output]
            finished.append((chunk.first_line, outputs.ratio[0], outputs))
            parts = sum(len(part.ratio) // part.positions - 1 for _, _, part in list(finished))
            if max_parts is not None and parts > max_parts:
                share = sum(part.ratio[part.start[1] - 1] - part.ratio[0] for *_, part in finished)
                raise TooManyRegionsError(
                    f"The line has more than {max_parts:,} parts: {parts:,} were found on "
                    f"{100 * share:.3g} % of its length. Choose a shorter line, or a larger "
                    "max_parts; attributions.sampled_gradients approximates integrated gradients."
                )

        first = _Chunk(0, 0, {self._program.input: ends})
        with one_thread_a_product():
            run_splitting(first, finish, self._workers)
        finished.sort(key=lambda part: part[:2])
        return [(line, outputs) for line, _, outputs in finished]

    def _advance(self, chunk: "_Chunk", apply: Callable[[LineStep, list[Curve]], Curve]) -> None:
        step = self._program.steps[chunk.next_step]
        result = apply(step, [chunk.curves[name] for name in step.inputs])
        for name in step.dead:
            del chunk.curves[name]
        chunk.curves[step.name] = result
        chunk.next_step += 1

    def _partition(self, start: np.ndarray, end: np.ndarray, parts: list[Curve]) -> LinearPartition:
        """Join the chunks of a line; neighbouring chunks have one row in common."""
        # A map's positions have bends of their own, so that all are joined to one first.
        curves = [part.regrouped((part.positions * part.channels,)) for part in parts]
        ratio = np.concatenate([curves[0].ratio[:1], *(curve.ratio[1:] for curve in curves)])
        values = np.concatenate([curves[0].values[:1], *(curve.values[1:] for curve in curves)])
        if not np.isfinite(values).all():
            raise NonFiniteActivationError(
                "The network's output on the line is NaN or infinite. Check the weights."
            )
        if not self._every_crossing:
            kept = _kernels.bends(np.array([0, len(ratio)]), ratio, values, _NOISE)
            ratio, values = ratio[kept], values[kept]
        return LinearPartition(start, end, ratio, values.reshape(-1, *self.output_shape))


@dataclass
class _Chunk:
    """Consecutive points of some lines, with the curves that later steps need.

    Attributes:
        first_line: Index of the first of its lines.
        next_step: Index of the next step.
        curves: Operation name → curve.
    """

    first_line: int
    next_step: int
    curves: dict[str, Curve]

    @property
    def is_large(self) -> bool:
        """Whether it should and can be split: it has several lines, or inner points."""
        width = sum(curve.positions * curve.channels for curve in self.curves.values())
        size = sum(curve.values.size for curve in self.curves.values())
        longest = self._longest
        inside = longest.lines > 1 or len(longest.ratio) > 2 * longest.positions
        return size > max(CHUNK, FEWEST * width) and inside

    @property
    def _longest(self) -> Curve:
        return max(self.curves.values(), key=lambda curve: len(curve.ratio) / curve.positions)

    def split(self) -> tuple["_Chunk", "_Chunk"]:
        """Return two halves: of the lines, or of a single line, cut at one of its points."""
        lines = self._longest.lines
        if lines > 1:
            halves = {name: curve.split_lines() for name, curve in self.curves.items()}
        else:
            place = _middle(self._longest)
            halves = {name: curve.split_at(place) for name, curve in self.curves.items()}
        first, second = ({name: pair[i] for name, pair in halves.items()} for i in (0, 1))
        return (
            _Chunk(self.first_line, self.next_step, first),
            _Chunk(self.first_line + lines // 2, self.next_step, second),
        )


def _apply(step: LineStep, inputs: list[Curve]) -> Curve:
    return step.transformer(*inputs)


def _middle(curve: Curve) -> float:
    """Return the median of the inner ratios of a curve with one line."""
    inside = (curve.ratio > curve.ratio[0]) & (curve.ratio < curve.ratio[-1])
    ratios = np.sort(curve.ratio[inside])
    return float(ratios[len(ratios) // 2])


def _ends(start: np.ndarray, end: np.ndarray) -> Curve:
    """Return the curve of lines that have only their ends, `(lines, *input shape)`."""
    lines, channels = len(start), start.shape[-1]
    ends = np.stack([start.reshape(lines, -1, channels), end.reshape(lines, -1, channels)], axis=1)
    values = ends.transpose(2, 0, 1, 3).reshape(-1, channels)  # position, line, end
    rows = 2 * np.arange(len(values) // 2 + 1)
    return Curve(lines, rows, np.tile([0.0, 1.0], len(rows) - 1), values)


def _one_line(curve: Curve, line: int) -> Curve:
    """Return one line of a curve, as a curve with a single position if it has several lines."""
    if curve.lines == 1:
        return curve
    curve = curve.regrouped((curve.positions * curve.channels,))
    first, last = curve.start[line], curve.start[line + 1]
    return Curve(1, np.array([0, last - first]), curve.ratio[first:last], curve.values[first:last])
