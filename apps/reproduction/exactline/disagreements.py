"""Exact disagreement of two networks, such as a model and its compressed version (ours).

Both are walked as one network, so that both are affine on every part of a line or polygon.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from nnslicer_tf._checks import counted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline.mesh import MAX_TAPS
from nnslicer_tf.exactline.partition import LinearPartition
from nnslicer_tf.exactline.planar_partition import divided
from nnslicer_tf.exactline.plane import PlaneWalker
from nnslicer_tf.exactline.program import LineProgram, LineStep
from nnslicer_tf.exactline.rules.routing import side_by_side
from nnslicer_tf.exactline.walk import LineWalker
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike

W = TypeVar("W", LineWalker, PlaneWalker)


@dataclass(frozen=True, eq=False)
class Disagreement(ShownAsTable):
    """Differences of two networks on a line or a polygon.

    `shares` `(classes, classes)` float64 are those of the length or area on which the first network
    predicts the row's class, and the second the column's.
    """

    shares: np.ndarray
    difference: float  # largest difference of any logit anywhere
    parts: int  # number of parts or regions on which both networks are affine
    point: np.ndarray | None  # an input in the middle of the largest part on which they differ

    def __repr__(self) -> str:
        return f"Disagreement({100 * self.share:.4g} %, {self.parts:,} parts)"

    @property
    def share(self) -> float:
        """The share of the length or area on which the networks disagree, in [0, 1]."""
        return float(self.shares.sum() - np.trace(self.shares))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per pair of predicted classes: first, second, share."""
        first, second = np.nonzero(self.shares)
        return pd.DataFrame({"first": first, "second": second, "share": self.shares[first, second]})


def disagreement(
    first: ModelLike,
    second: ModelLike,
    corners: np.ndarray,
    *,
    max_regions: int | None = None,
    progress: bool = False,
) -> Disagreement:
    """Measure exactly where two networks disagree.

    Args:
        first: A piecewise-linear classifier; on a polygon, of up to 64 classes.
        second: Another one with the same inputs and classes.
        corners: `(corners, *input shape)`: two ends of a line, or a polygon as for `exact_plane`.
        max_regions: Stop with an error if there are more regions.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if inputs or classes differ, or there are too many classes.
        UnsupportedLayerError, InputShapeError, NonFiniteActivationError, TooManyRegionsError: as
            `exact_plane`.
    """
    models = (instrumented(first), instrumented(second))
    shapes = [(im.input_shape, im[im.logit_operation].shape) for im in models]
    classes = shapes[0][1][0]
    if shapes[0] != shapes[1] or len(shapes[0][1]) != 1 or classes < 2:
        raise InvalidArgumentError(
            "Both networks must have the same inputs, and equally many classes. Received "
            f"shapes of inputs and outputs: {shapes[0]} and {shapes[1]}"
        )
    points: Callable[[np.ndarray], np.ndarray]
    if len(corners) == 2:
        line = _together([LineWalker(im) for im in models]).line(*corners)
        halves = [line.outputs[:, :classes], line.outputs[:, classes:]]
        both = [LinearPartition(line.start, line.end, line.ratios, x).classify() for x in halves]
        ratios = np.unique(np.concatenate([one.ratios for one in both]))
        middles, sizes, parts = (ratios[1:] + ratios[:-1]) / 2, np.diff(ratios), len(line)
        labels = [one.label_at(middles) for one in both]
        points = line.at
    else:
        if classes > MAX_TAPS:
            raise InvalidArgumentError(
                f"On a polygon, disagreement supports classifiers of up to {MAX_TAPS} classes; on "
                f"a line, of any number. Received: {counted(classes, 'class')}"
            )
        walker = _together([PlaneWalker(im) for im in models])
        plane = walker.plane(corners, max_regions=max_regions, progress=progress)
        mesh, values = plane.mesh, plane.values
        for first in (0, classes):
            mesh, values = divided(mesh, values, np.s_[first : first + classes])
        halves = [values[:, :classes], values[:, classes:]]
        labels = [mesh.integrals(x).argmax(axis=1) for x in halves]
        middles, sizes, parts, points = mesh.middles(), mesh.areas(), len(plane), plane.at

    shares = np.zeros((classes, classes))
    np.add.at(shares, tuple(labels), sizes / sizes.sum())
    difference = float(np.abs(halves[0] - halves[1]).max())  # convex: largest at a vertex
    differ = labels[0] != labels[1]
    largest = int(np.argmax(sizes * differ))
    point = points(middles[[largest]])[0] if differ.any() else None
    return Disagreement(shares, difference, parts, point)


def _together(walkers: Sequence[W]) -> W:
    """Return a walker of several networks as one, whose output has the outputs of all."""
    steps, outputs = list[LineStep](), []
    for i, program in enumerate(walker.program for walker in walkers):
        names = {step.name: f"{i}/{step.name}" for step in program.steps}
        names[program.input] = "input"
        for step in program.steps:
            inputs = tuple(names[name] for name in step.inputs)
            steps.append(LineStep(names[step.name], inputs, step.transformer))
        outputs.append(names[program.output])
    steps.append(LineStep("output", tuple(outputs), side_by_side))
    size = sum(walker.program.output_shape[0] for walker in walkers)
    shapes = walkers[0].program.input_shape, (size,)
    # No value is marked as dead: all are kept until the end, which small networks afford.
    walkers[0].program = LineProgram("input", "output", tuple(steps), *shapes)
    return walkers[0]
