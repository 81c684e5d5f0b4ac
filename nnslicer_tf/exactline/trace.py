"""Gradients of an output along an exact line, by a walk back through the network.

On the way forward, the slopes of every operation are recorded along the line. On the way back,
gradients are step functions of the ratio, stored by position: an operation's gradient at a pixel
has pieces only for the bends behind it, and for its own bends within its reach. A forward pass and
a backward pass for each part of the line would compute the same products many times over: on a
convolutional network with 33,000 parts, a pixel's gradient has fewer than 2,000 pieces, and a
hidden dense layer's a few hundred.

As on the way forward, the line is cut where a step has more than `CHUNK` values. The slopes are
kept for the whole line, and so are the gradients of the input, unless only their mean is asked for.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from nnslicer_tf._environment import one_thread_a_product
from nnslicer_tf.exactline._program import LineProgram, LineStep
from nnslicer_tf.exactline._workers import run_splitting
from nnslicer_tf.exactline.bends import GradientTransformer, PullsGradients
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.steps import Steps

CHUNK = 1 << 20  # float64 values in a chunk: 8 MB
_FEWEST = 8  # smallest number of pieces of a position that is cut


class TraceRecorder:
    """Records the slopes and the shapes of a walk's operations."""

    def __init__(self) -> None:
        self._slopes: list[tuple[str, Steps]] = []
        self._shapes: dict[str, tuple[int, int]] = {}

    def apply(self, step: LineStep, inputs: list[Curve]) -> Curve:
        """Return the curve of an operation, and record its slopes; called by several threads."""
        if isinstance(step.transformer, GradientTransformer):
            curve, slopes = step.transformer.traced(*inputs)
            self._slopes.append((step.name, slopes))
        else:
            curve = step.transformer(*inputs)
        self._shapes[step.name] = curve.positions, curve.channels
        return curve

    def trace(self, program: LineProgram, ends: Curve, workers: int) -> "LineTrace":
        """Return the trace after the walk."""
        shapes = {program.input: (ends.positions, ends.channels)} | self._shapes
        parts: dict[str, list[Steps]] = defaultdict(list)
        for name, slopes in self._slopes:
            parts[name].append(slopes)
        joined = {name: Steps.joined(slopes) for name, slopes in parts.items()}
        return LineTrace(program, shapes, joined, workers)


@dataclass(frozen=True)
class LineTrace:
    """The slopes of a network's operations along a line.

    Attributes:
        program: The walk's program.
        shapes: Operation name → positions and channels of its curve.
        slopes: Names of operations that bend → their slopes in the values of their windows.
        workers: Number of threads; 0 for as many as there are cores.
    """

    program: LineProgram
    shapes: dict[str, tuple[int, int]]
    slopes: dict[str, Steps]
    workers: int

    def gradients(self, target: int) -> Steps:
        """Return the gradients of an output with respect to the input, along the line."""
        return Steps.joined(self._walk(target, lambda name, g: g))

    def mean_gradient(self, target: int) -> np.ndarray:
        """Return the mean of the gradients over the line, `(positions, channels)`."""
        linear = self._linear_in_input()

        def averaged(name: str, g: Steps) -> Steps:
            if name not in linear:
                return g
            width = g.end - g.begin
            return Steps.constant(g.integrals() / width, g.begin, g.end)

        parts = self._walk(target, averaged)
        return np.sum([part.integrals() for part in parts], axis=0)

    def _linear_in_input(self) -> set[str]:
        """Return the names of the values before any bend, the input's among them."""
        linear = {self.program.input}
        for step in self.program.steps:
            if step.name not in self.slopes and linear.issuperset(step.inputs):
                linear.add(step.name)
        return linear

    def _walk(self, target: int, simplified: Callable[[str, Steps], Steps]) -> list[Steps]:
        """Return the gradients with respect to the input, on consecutive ranges of the line.

        Args:
            target: Index of the output.
            simplified: Called with the name of each value and its gradient, before that is
                propagated further.
        """
        output = self.program.output
        positions, channels = self.shapes[output]
        unit = np.zeros(positions * channels)
        unit[target] = 1.0
        whole = Steps.constant(unit.reshape(positions, channels), 0.0, 1.0)
        finished: list[Steps] = []

        def finish(chunk: _Chunk, waiting: list[_Chunk]) -> None:
            while chunk.steps_left:
                if chunk.is_large:
                    chunk, second = chunk.split()
                    waiting.append(second)
                else:
                    self._retreat(chunk, simplified)
            finished.append(simplified(self.program.input, chunk.gradients[self.program.input]))

        with one_thread_a_product():
            first = _Chunk(len(self.program.steps), {output: whole})
            run_splitting(first, finish, self.workers)
        return finished

    def _retreat(self, chunk: "_Chunk", simplified: Callable[[str, Steps], Steps]) -> None:
        """Propagate the gradient of a chunk's last step to the step's inputs."""
        chunk.steps_left -= 1
        step = self.program.steps[chunk.steps_left]
        g = simplified(step.name, chunk.gradients.pop(step.name))
        if step.name in self.slopes:
            slopes = self.slopes[step.name].between(g.begin, g.end)
            window = slopes.positions, g.positions * g.channels // slopes.positions
            g = g.regrouped(*window).times(slopes)
        inputs = cast(PullsGradients, step.transformer).pull(g)
        for name, pulled in zip(step.inputs, inputs, strict=True):
            pulled = pulled.regrouped(*self.shapes[name])
            known = chunk.gradients.get(name)
            chunk.gradients[name] = pulled if known is None else Steps.total([known, pulled])


@dataclass
class _Chunk:
    """The gradients on a range of a line that later steps of the walk back need.

    Attributes:
        steps_left: Number of steps of the program that are still to be walked.
        gradients: Operation name → gradient with respect to its values.
    """

    steps_left: int
    gradients: dict[str, Steps]

    @property
    def is_large(self) -> bool:
        """Whether it should and can be split."""
        size = sum(g.values.size for g in self.gradients.values())
        return size > CHUNK and np.diff(self._longest.start).max() > _FEWEST

    @property
    def _longest(self) -> Steps:
        return max(self.gradients.values(), key=lambda g: len(g.ratio) / g.positions)

    def split(self) -> tuple["_Chunk", "_Chunk"]:
        """Return two halves, cut at a ratio where the position with most pieces has one."""
        longest = self._longest
        position = np.argmax(np.diff(longest.start))
        own = longest.ratio[longest.start[position] : longest.start[position + 1]]
        place = own[len(own) // 2]
        ranges = ((longest.begin, place), (place, longest.end))
        first, second = (
            {name: g.between(*ends) for name, g in self.gradients.items()} for ends in ranges
        )
        return _Chunk(self.steps_left, first), _Chunk(self.steps_left, second)
