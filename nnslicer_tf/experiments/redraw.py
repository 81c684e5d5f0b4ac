"""Figures drawn again from the result tables that they show.

For figures that are functions of a table alone: a change of their form needs no new measurement.
"""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from nnslicer_tf._progress import track
from nnslicer_tf.experiments.circuits import finding
from nnslicer_tf.experiments.deepxplore import differences
from nnslicer_tf.experiments.exactline import attributions, linearities
from nnslicer_tf.experiments.neusemslice import slicing
from nnslicer_tf.experiments.nnslicer import detection, evidence, program, protection, pruning
from nnslicer_tf.experiments.result import ExperimentFigure
from nnslicer_tf.report import read_table

Drawer = Callable[[str, pd.DataFrame], list[ExperimentFigure]]


def _semantic(name: str, curves: pd.DataFrame) -> list[ExperimentFigure]:
    title = name.removeprefix("figure5-")
    return [ExperimentFigure(name, slicing.plot_curves(curves, title))]


DRAWERS: dict[str, Drawer] = {
    "circuits/*-networks.csv": lambda name, rows: [
        ExperimentFigure(name.removesuffix("-networks"), finding.plot(rows))
    ],
    "deepxplore/coverage.csv": lambda name, rows: [
        ExperimentFigure(name, differences.plot_coverage(rows), 100)
    ],
    "exactline/attributions_images.csv": lambda name, rows: [
        ExperimentFigure("attributions", attributions.plot(rows), 120)
    ],
    "exactline/linearity_images.csv": lambda name, rows: [
        ExperimentFigure("linearity", linearities.plot(rows), 120)
    ],
    "program/pruning-resnet*.csv": lambda name, rows: [ExperimentFigure(name, program.plot(rows))],
    "program/protection-*.csv": lambda name, rows: [ExperimentFigure(name, protection.plot(rows))],
    "detection/*[!s]-mnist*.csv": detection.figures,
    "detection/*[!s]-cifar10*.csv": detection.figures,
    "detection/evidence/*-mnist.csv": lambda name, rows: [
        ExperimentFigure(name, evidence.plot(rows))
    ],
    "pruning/figure*.csv": lambda name, rows: [ExperimentFigure(name, pruning.plot(rows))],
    "protection/**/figure*.csv": lambda name, rows: [ExperimentFigure(name, protection.plot(rows))],
    "semantic/figure5-*.csv": _semantic,
}
"""Pattern of tables below the folder of results → what draws the figures of one of them."""


def redraw(folder: Path, progress: bool = True) -> list[Path]:
    """Draw the figures of all tables in `DRAWERS` again, and return the files.

    Args:
        folder: Folder of results.
        progress: Show a progress bar.
    """
    found = [(path, draw) for pattern, draw in DRAWERS.items() for path in folder.glob(pattern)]
    files = []
    for path, draw in track(sorted(found, key=lambda pair: pair[0]), "Drawing", progress=progress):
        for figure in draw(path.stem, read_table(path).frame):
            files += figure.write(path.parent)
    return files
