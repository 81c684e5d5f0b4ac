"""Semantic slices that grow by few or by many neurons: the interval i of Algorithm 1.

The paper leaves the interval open. A layer keeps at least i neurons for each category, so that
with a large interval small layers stay whole. This comparison is not in the paper.
"""

from dataclasses import replace

import pandas as pd

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.neusemslice.settings import MaintenanceSettings
from reproduction.neusemslice.slicing import curve_rows, plot_curves
from reproduction.neusemslice.tables import area_tests
from reproduction.neusemslice.trial import Repeats
from reproduction.result import ExperimentFigure, ExperimentResult

_INTERVALS = (1, 16, 64, 256)


def intervals(s: MaintenanceSettings) -> ExperimentResult:
    """Compare the curves of semantic slices that grow by different numbers of neurons."""
    if s.interval != 1:
        raise InvalidArgumentError(
            f"intervals compares slices that grow by {', '.join(map(str, _INTERVALS))} neurons: "
            f"leave out --interval. Received: --interval {s.interval}"
        )
    repeats = Repeats(s)
    parts = []
    for interval in _INTERVALS:
        grown = Repeats(replace(s, interval=interval))
        rows = grown.rows(f"slicing-{s.metric}", curve_rows, s.metric)
        parts.append(rows.assign(metric=f"{s.metric}, i = {interval}"))
    curve = pd.concat(parts, ignore_index=True)
    title = "Semantic slices that grow by i neurons against the others, areas over the common range"
    tables = [
        repeats.table("intervals", "Accuracy over compression rate by the interval i", curve),
        repeats.table("intervals", title, area_tests(curve), "-tests"),
    ]
    figure = ExperimentFigure(f"intervals-{s.name}", plot_curves(f"intervals-{s.name}", curve))
    return ExperimentResult(tables, [figure])
