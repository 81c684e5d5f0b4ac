"""Interactive views for the experiments' `--explore`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from nnslicer_tf import explore
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Slicer
from reproduction.result import ExperimentView


def view_of_marks(
    path: Path | None,
    im: InstrumentedModel,
    marks: Callable[[], Mapping[str, Mapping[str, np.ndarray]]],
    title: str,
) -> list[ExperimentView]:
    """Return a view of marks or scores of neurons or weights; none without a path.

    `marks` is only called if there is a path, and returns name → operations, layers or kernels
    with their marks.
    """
    if path is None:
        return []
    return [ExperimentView(path, explore(marks(), im, title=title))]


MOST_PAIRS = 10
"""Pairs in a view; more would only make the file larger."""


def view_of_pairs(
    path: Path | None, slicer: Slicer, normal: np.ndarray, adversarial: np.ndarray
) -> Sequence[ExperimentView]:
    """Return a view of the slices of normal inputs and their adversarial versions, if any."""
    if path is None:
        return []
    inputs = {"normal": normal[:MOST_PAIRS], "adversarial": adversarial[:MOST_PAIRS]}
    slices = {name: slicer.slice_each(x, outputs="predicted") for name, x in inputs.items()}
    title = f"Normal and adversarial inputs of {slicer.im.model.name}"
    view = explore(slices, slicer.im, inputs, profile=slicer.profile, title=title)
    return [ExperimentView(path, view)]
