"""Interactive views for the experiments' `--explore`."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report.explorer import explore
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
