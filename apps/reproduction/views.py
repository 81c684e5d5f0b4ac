"""Interactive views for the experiments' `--explore`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report.explorer import explore
from nnslicer_tf.slicing import Slicer
from reproduction.result import ExperimentView

MOST_SAMPLES = 10
"""Samples in a view; more would only make the file larger."""


def view_of_marks(
    path: Path | None,
    im: InstrumentedModel,
    marks: Callable[[], Mapping[str, Mapping[str, np.ndarray]]],
    title: str,
) -> list[ExperimentView]:
    """Return a view of marks or scores of neurons or weights; none without a path.

    Args:
        path: The HTML file, or None.
        im: The model.
        marks: Returns name → operations, layers or kernels with their marks; only called if there
            is a path.
        title: Title of the view.
    """
    if path is None:
        return []
    return [ExperimentView(path, explore(marks(), im, title=title))]


MOST_PAIRS = 10
"""Pairs in a view; more would only make the file larger."""


def view_of_pairs(
    path: Path | None, slicer: Slicer, normal: np.ndarray, adversarial: np.ndarray
) -> Sequence[ExperimentView]:
    """Return a view of the slices of pairs of inputs; none without a path.

    Args:
        path: The HTML file, or None.
        slicer: The slicer.
        normal: Normal inputs `(pairs, *input_shape)`.
        adversarial: Their adversarial versions.
    """
    if path is None:
        return []
    inputs = {"normal": normal[:MOST_PAIRS], "adversarial": adversarial[:MOST_PAIRS]}
    slices = {name: slicer.slice_each(x, outputs="predicted") for name, x in inputs.items()}
    title = f"Normal and adversarial inputs of {slicer.im.model.name}"
    view = explore(slices, slicer.im, inputs, profile=slicer.profile, title=title)
    return [ExperimentView(path, view)]
