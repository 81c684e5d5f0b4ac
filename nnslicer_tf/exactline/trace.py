"""Gradients of an output along an exact line, by a walk back through the network.

The forward walk records the slopes of every operation along the line. On the way back, gradients
are step functions by position, so a pixel's gradient has pieces only for the bends that affect it.
The line is cut where a step has more than `CHUNK` values. Slopes stay in memory for the whole line,
and so do the gradients of the input, unless only their mean is needed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._environment import one_thread_a_product
from nnslicer_tf.exactline.pieces import longest, run_splitting
from nnslicer_tf.exactline.program import LineProgram
from nnslicer_tf.exactline.steps import Steps

CHUNK = 1 << 20  # Number of float64 values in a chunk: 8 MB
_MIN_PIECES = 8  # of a position that is cut


@dataclass(frozen=True)
class LineTrace:
    """The slopes of a network's operations along a line."""

    program: LineProgram
    shapes: dict[str, tuple[int, int]]  # operation name → positions and channels of its curve
    # name of an operation that bends → its slopes in the values of its window
    slopes: dict[str, Steps]
    workers: int  # number of threads; 0 for as many as there are cores

    def gradients(self, target: int) -> Steps:
        """Return the gradients of an output with respect to the input, along the line."""
        return Steps.joined(self.ranges(target))

    def mean_gradient(self, target: int) -> np.ndarray:
        """Return the mean of the gradients over the line, `(positions, channels)`."""
        return np.sum([part.integrals() for part in self.ranges(target, averaged=True)], axis=0)

    def ranges(self, target: int, *, averaged: bool = False) -> list[Steps]:
        """Return the gradients with respect to the input, on consecutive ranges of the line."""
        # Averaged: on each range, their mean, once only linear operations remain.
        linear: set[str] = {self.program.input} if averaged else set()
        for step in self.program.steps if averaged else ():
            if step.name not in self.slopes and linear.issuperset(step.inputs):
                linear.add(step.name)
        finished: list[Steps] = []

        def simplified(name: str, g: Steps) -> Steps:
            if name not in linear:
                return g
            begin, end = g.ratio[[0, -1]]
            return Steps.constant(g.integrals() / (end - begin), begin, end)

        def advance(chunk: _Chunk) -> bool:
            """Propagate the gradient of a chunk's last step to the step's inputs."""
            if not chunk.steps_left:
                name = self.program.input
                finished.append(simplified(name, chunk.gradients[name]))
                return False
            chunk.steps_left -= 1
            step = self.program.steps[chunk.steps_left]
            g = simplified(step.name, chunk.gradients.pop(step.name))
            if step.name in self.slopes:
                slopes = self.slopes[step.name].between(g.ratio[0], g.ratio[-1])
                window = slopes.positions, g.positions * g.channels // slopes.positions
                g = g.regrouped(*window).times(slopes)
            transformer: Any = step.transformer
            for name, part in zip(step.inputs, transformer.pull(g), strict=True):
                others = [chunk.gradients[name]] if name in chunk.gradients else []
                chunk.gradients[name] = Steps.total([*others, part.regrouped(*self.shapes[name])])
            return True

        output = self.program.output
        unit = np.zeros(self.shapes[output])
        unit.flat[target] = 1.0
        whole = {output: Steps.constant(unit, 0.0, 1.0)}
        with one_thread_a_product():
            run_splitting(_Chunk(len(self.program.steps), whole), advance, self.workers)
        return finished


@dataclass
class _Chunk:
    """The gradients on a range of a line that later steps of the walk back need."""

    steps_left: int  # number of the program's steps still to be walked
    gradients: dict[str, Steps]  # operation name → gradient with respect to its values

    @property
    def is_large(self) -> bool:
        """Whether it is unfinished, and should and can be split."""
        size = sum(g.values.size for g in self.gradients.values())
        can_split = self.steps_left and np.diff(longest(self.gradients).start).max() > _MIN_PIECES
        return bool(size > CHUNK and can_split)

    def split(self) -> tuple["_Chunk", "_Chunk"]:
        """Return two halves, cut at a ratio where the position with most pieces has one."""
        most = longest(self.gradients)
        position = np.argmax(np.diff(most.start))
        ratios = most.ratio[most.start[position] : most.start[position + 1]]
        place = ratios[len(ratios) // 2]
        before = {name: g.between(g.ratio[0], place) for name, g in self.gradients.items()}
        after = {name: g.between(place, g.ratio[-1]) for name, g in self.gradients.items()}
        return _Chunk(self.steps_left, before), _Chunk(self.steps_left, after)
