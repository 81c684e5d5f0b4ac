"""`LineWalker`: propagates lines through a network, operation by operation.

Each operation adds points where it changes its affine piece, and costs its matrix product over the
points so far, and a pass over all values to find crossings. Memory is bounded: a chunk of
consecutive points with more than `CHUNK` values (or `FEWEST` points, if larger) is split, and one
half finished first. Chunks run on threads, one per core.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nnslicer_tf._checks import check_count
from nnslicer_tf._environment import one_thread_a_product, waiting
from nnslicer_tf.errors import InputShapeError, NonFiniteActivationError, TooManyRegionsError
from nnslicer_tf.exactline._kernels import lines as _kernels
from nnslicer_tf.exactline.bends import GradientTransformer, pulls_gradients
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.partition import LinearPartition
from nnslicer_tf.exactline.pieces import longest, run_splitting
from nnslicer_tf.exactline.program import LineStep, program_of
from nnslicer_tf.exactline.steps import Steps
from nnslicer_tf.exactline.trace import LineTrace
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike

CHUNK = 1 << 18  # Number of live float64 values in a chunk: 2 MB, which fits into a cache
FEWEST = 8  # Smallest number of points in a chunk, as each cut adds one
_NOISE = 1e-13  # smaller bends, relative to a line's largest output, count as rounding errors


def exact_line(
    im: ModelLike,
    start: np.ndarray,
    end: np.ndarray,
    *,
    max_parts: int | None = None,
    progress: bool = True,
) -> LinearPartition:
    """Partition the segment from start to end so that the network is affine on every part.

    Calls on one model share a walker until its weights change.

    Args:
        im: An instrumented or Keras model. A final softmax or sigmoid is ignored.
        start: A point of the model's input shape (q in the paper).
        end: Another point (r in the paper).
        max_parts: Stop with an error at more parts, counted before those without a bend are joined.
        progress: Show the time after two seconds.

    Returns the partition, with all points where the affine piece changes (ExactLine, definition 1).

    Raises UnsupportedLayerError if an operation, named in the message, is not piecewise linear;
    InputShapeError if start or end does not have the model's input shape; NonFiniteActivationError
    if start, end or the network's outputs are NaN or infinite; TooManyRegionsError if the line has
    more than `max_parts`.
    """
    im = instrumented(im).named_by(start, end)
    start, end = im.points(start, "start"), im.points(end, "end")
    with waiting("Line", progress):
        return im.prepared(LineWalker, lambda: LineWalker(im)).line(start, end, max_parts)


class LineWalker:
    """A model prepared for exact lines; later changes of its weights have no effect.

    Args:
        im: An instrumented or Keras model.
        every_crossing: Also include points at which an operation bends but the output does not.
        workers: Number of threads; 0 for one per core. The result does not depend on it.

    Attributes:
        program: The steps from the input to the logits.

    Raises UnsupportedLayerError if an operation before the logits is not piecewise linear.
    """

    def __init__(self, im: ModelLike, *, every_crossing: bool = False, workers: int = 0) -> None:
        self._im = instrumented(im)
        self.program = program_of(self._im)
        self._every_crossing, self._workers = every_crossing, workers

    def line(
        self, start: np.ndarray, end: np.ndarray, max_parts: int | None = None
    ) -> LinearPartition:
        """Partition one segment; see `exact_line`."""
        return self._partitions(*self._checked(start, end), max_parts)[0]

    def lines(self, start: np.ndarray, end: np.ndarray) -> list[LinearPartition]:
        """Partition many segments, from `start` to `end` `(lines, *input shape)`, in one walk."""
        return self._partitions(*self._checked(start, end, batch_axes=1))

    @property
    def can_trace(self) -> bool:
        """Whether `traced` works: whether all transformers propagate gradients back."""
        return all(pulls_gradients(step.transformer) for step in self.program.steps)

    def traced(
        self, start: np.ndarray, end: np.ndarray, max_parts: int | None = None
    ) -> tuple[LinearPartition, LineTrace]:
        """Partition one segment, and return it with the trace that its gradients need."""
        start, end = self._checked(start, end)
        ends = Curve.straight(start, end)
        shapes = {self.program.input: (ends.positions, ends.channels)}
        slopes = defaultdict[str, list[Steps]](list)  # of each chunk, added by several threads

        def apply(step: LineStep, inputs: list[Curve]) -> Curve:
            if isinstance(step.transformer, GradientTransformer):
                curve, slope = step.transformer.traced(*inputs)
                slopes[step.name].append(slope)
            else:
                curve = step.transformer(*inputs)
            shapes[step.name] = curve.positions, curve.channels
            return curve

        partition = self._partitions(start, end, max_parts, apply)[0]
        joined = {name: Steps.joined(parts) for name, parts in slopes.items()}
        return partition, LineTrace(self.program, shapes, joined, self._workers)

    def _checked(
        self, start: np.ndarray, end: np.ndarray, batch_axes: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return valid ends of lines, `(lines, *input shape)`."""
        im = self._im.named_by(start, end)
        start, end = im.points(start, "start", batch_axes), im.points(end, "end", batch_axes)
        if start.shape != end.shape:
            raise InputShapeError(
                "start and end must have the same number of points. "
                f"Received: start of shape {start.shape}, end of shape {end.shape}"
            )
        return (start, end) if batch_axes else (start[None], end[None])

    def _partitions(
        self,
        start: np.ndarray,
        end: np.ndarray,
        max_parts: int | None = None,
        apply: Callable[[LineStep, list[Curve]], Curve] = lambda step, x: step.transformer(*x),
    ) -> list[LinearPartition]:
        """Walk all lines from `start` to `end`; `apply` returns the curve after a step."""
        if max_parts is not None:
            check_count("max_parts", max_parts)
        if not len(start):
            return []
        finished: list[tuple[int, float, Curve]] = []  # first line, first ratio, outputs

        def advance(chunk: _Chunk) -> bool:
            if chunk.steps:
                step, *chunk.steps = chunk.steps
                chunk.curves[step.name] = apply(step, [chunk.curves[name] for name in step.inputs])
                for name in step.dead:
                    del chunk.curves[name]
                return True
            outputs = chunk.curves[self.program.output]
            finished.append((chunk.first_line, outputs.ratio[0], outputs))
            parts = sum(len(part.ratio) // part.positions - 1 for *_, part in list(finished))
            if max_parts is not None and parts > max_parts:
                share = sum(part.ratio[part.start[1] - 1] - part.ratio[0] for *_, part in finished)
                raise TooManyRegionsError(
                    f"The line has more than {max_parts:,} parts: {parts:,} were found on "
                    f"{100 * share:.3g} % of its length. Choose a shorter line, or a larger "
                    "max_parts; attributions.sampled_gradients approximates integrated gradients."
                )
            return False

        first = _Chunk([*self.program.steps], {self.program.input: Curve.straight(start, end)})
        with one_thread_a_product():
            run_splitting(first, advance, self._workers)
        finished.sort(key=lambda part: part[:2])

        pieces: list[list[Curve]] = [[] for _ in start]
        for first_line, _, outputs in finished:
            for line in range(outputs.lines):
                pieces[first_line + line].append(outputs.line(line))
        partitions = []
        for ends, parts in zip(zip(start, end, strict=True), pieces, strict=True):
            # Neighbouring chunks have one row in common.
            ratio = np.concatenate([parts[0].ratio[:1], *(curve.ratio[1:] for curve in parts)])
            values = np.concatenate([parts[0].values[:1], *(curve.values[1:] for curve in parts)])
            if not np.isfinite(values).all():
                raise NonFiniteActivationError(
                    "The network's output on the line is NaN or infinite. Check the weights."
                )
            if not self._every_crossing:
                bends = _kernels.bends(ratio, values, _NOISE)
                ratio, values = ratio[bends], values[bends]
            values = values.reshape(-1, *self.program.output_shape)
            partitions.append(LinearPartition(*ends, ratio, values))
        return partitions


@dataclass
class _Chunk:
    """Consecutive points of some lines, with the curves that later steps need."""

    steps: list[LineStep]  # the remaining steps
    curves: dict[str, Curve]  # operation name → curve
    first_line: int = 0  # index of the first of its lines

    @property
    def is_large(self) -> bool:
        """Whether it is unfinished, should be split, and has several lines or inner points."""
        width = sum(curve.positions * curve.channels for curve in self.curves.values())
        size = sum(curve.values.size for curve in self.curves.values())
        most = longest(self.curves)
        inside = most.lines > 1 or len(most.ratio) > 2 * most.positions
        return bool(self.steps) and size > max(CHUNK, FEWEST * width) and inside

    def split(self) -> tuple["_Chunk", "_Chunk"]:
        """Return two halves: of the lines, or of a single line, cut at one of its points."""
        most = longest(self.curves)
        if most.lines > 1:
            halves = {name: curve.split_lines() for name, curve in self.curves.items()}
        else:
            ratio = most.ratio
            inside = np.sort(ratio[(ratio > ratio[0]) & (ratio < ratio[-1])])
            place = float(inside[len(inside) // 2])
            halves = {name: curve.split_at(place) for name, curve in self.curves.items()}
        first, second = ({name: pair[i] for name, pair in halves.items()} for i in (0, 1))
        later = self.first_line + most.lines // 2
        return _Chunk(self.steps, first, self.first_line), _Chunk(self.steps, second, later)
