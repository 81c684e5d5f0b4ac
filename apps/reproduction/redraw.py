"""Redraw figures from their tables, or from the arrays saved beside them.

So a change in their appearance needs no new measurement.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from nnslicer_tf._progress import track
from reproduction.circuits import finding
from reproduction.debugging import compression, localisation
from reproduction.deepbase import sql, units
from reproduction.deepxplore import differences, sweeps
from reproduction.dflare import layers, searches
from reproduction.exactline import (
    advice_maps,
    attributions,
    baselines,
    boundaries,
    linearities,
    neighbourhoods,
)
from reproduction.neusemslice import slicing
from reproduction.nnslicer import (
    challenge,
    detection,
    drawing,
    evidence,
    over_time,
    patches,
    program,
    protection,
    pruning,
)
from reproduction.result import ExperimentFigure
from reproduction.result_tables import read_table
from reproduction.sentences import words

Drawer = Callable[[str, pd.DataFrame], list[ExperimentFigure]]


def _semantic(name: str, curves: pd.DataFrame) -> list[ExperimentFigure]:
    title = name.partition("-")[2]
    return [ExperimentFigure(name, slicing.plot_curves(curves, title))]


DRAWERS: dict[str, Drawer] = {
    "debugging/faults_*_ranks.csv": lambda name, rows: [
        ExperimentFigure(name.removesuffix("_ranks"), localisation.plot(name, rows))
    ],
    "debugging/compression_*_layers.csv": lambda name, rows: [
        ExperimentFigure(name.removesuffix("_layers"), compression.plot(rows))
    ],
    "deepbase/units-layers.csv": lambda name, rows: [
        ExperimentFigure("units", units.plot(rows), 100)
    ],
    "dflare/search*_runs.csv": lambda name, rows: [
        ExperimentFigure(name.replace("_runs", "_queries"), searches.plot_runs(rows))
    ],
    "dflare/layers-*.csv": lambda name, rows: [ExperimentFigure(name, layers.plot(rows))],
    "circuits/*-networks.csv": lambda name, rows: [
        ExperimentFigure(name.removesuffix("-networks"), finding.plot(rows))
    ],
    "deepxplore/coverage.csv": lambda name, rows: [
        ExperimentFigure(name, differences.plot_coverage(rows), 100)
    ],
    "deepxplore/sweep-*.csv": lambda name, rows: [ExperimentFigure(name, sweeps.plot_sweep(rows))],
    "deepxplore/numbers-*.csv": lambda name, rows: [
        ExperimentFigure(name, sweeps.plot_numbers(rows))
    ],
    "exactline/**/attributions_images.csv": lambda name, rows: [
        ExperimentFigure("attributions", attributions.plot(rows), 120)
    ],
    "exactline/**/linearity_images.csv": lambda name, rows: [
        ExperimentFigure("linearity", linearities.plot(rows), 120)
    ],
    "program/pruning-resnet*.csv": lambda name, rows: [ExperimentFigure(name, program.plot(rows))],
    "program/protection-*.csv": lambda name, rows: [ExperimentFigure(name, protection.plot(rows))],
    "detection/*[!s]-mnist*.csv": detection.figures,
    "detection/*[!s]-cifar10*.csv": detection.figures,
    "detection/evidence/*-mnist.csv": lambda name, rows: [
        ExperimentFigure(name, evidence.plot(rows))
    ],
    "detection/evidence/*-from[0-9]*[0-9].csv": lambda name, rows: [
        ExperimentFigure(name, evidence.plot(rows))
    ],
    "pruning/figure*.csv": lambda name, rows: [ExperimentFigure(name, pruning.plot(rows))],
    "protection/**/figure*.csv": lambda name, rows: [ExperimentFigure(name, protection.plot(rows))],
    "semantic/**/figure[56]-*.csv": _semantic,
}
"""Pattern of tables below the folder of results → function that draws the figures of one."""


PICTURES: dict[str, Callable[[str, Mapping[str, np.ndarray]], ExperimentFigure]] = {
    "deepbase/sql.npz": lambda name, drawn: ExperimentFigure(name, sql.plot(drawn)),
    "deepxplore/differences_*.npz": lambda name, drawn: ExperimentFigure(
        name, differences.plot_differences(name.removeprefix("differences_"), drawn), 100
    ),
    "exactline/acas.npz": lambda name, drawn: ExperimentFigure(name, boundaries.plot(drawn), 120),
    "exactline/acas_planes.npz": lambda name, drawn: ExperimentFigure(
        name, advice_maps.plot(drawn), 120
    ),
    "exactline/baselines.npz": lambda name, drawn: ExperimentFigure(name, baselines.plot(drawn)),
    "exactline/**/linearity_ticks.npz": lambda name, drawn: ExperimentFigure(
        name, linearities.plot_lines(drawn), 120
    ),
    "exactline/neighbourhoods.npz": lambda name, drawn: ExperimentFigure(
        name, neighbourhoods.plot(drawn)
    ),
    "sentences/words_*.npz": lambda name, drawn: ExperimentFigure(name, words.plot(drawn)),
    "slices/patches.npz": lambda name, drawn: ExperimentFigure(name, patches.plot(drawn)),
    "slices/over-time.npz": lambda name, drawn: ExperimentFigure(name, over_time.plot(drawn)),
    "slices/*-parts.npz": lambda name, drawn: ExperimentFigure(name, drawing.plot_parts(drawn)),
    "slices/*-mnist.npz": lambda name, drawn: ExperimentFigure(name, drawing.plot_pair(drawn)),
    "slices/*-cifar10.npz": lambda name, drawn: ExperimentFigure(name, drawing.plot_pair(drawn)),
}
"""Pattern of array files below the folder of results → function that draws the figure of one."""


FILES: dict[str, Callable[[Path], list[Path]]] = {
    "detection/challenge/*-images.csv": lambda path: [
        file for figure in challenge.figures(path) for file in figure.write(path.parent)
    ],
}
"""Pattern of tables whose figures also need the tables beside them → function that draws them."""


def redraw(folder: Path, progress: bool = True) -> list[Path]:
    """Redraw the figures of all tables in `DRAWERS`, of all arrays in `PICTURES`, and `FILES`.

    Args:
        folder: Folder of results.
        progress: Show a progress bar.

    Returns:
        The files.
    """
    tables = [(path, draw) for pattern, draw in DRAWERS.items() for path in folder.glob(pattern)]
    arrays = [(path, draw) for pattern, draw in PICTURES.items() for path in folder.glob(pattern)]
    files = []
    for path, draw in track(sorted(tables, key=lambda p: p[0]), "Tables", progress=progress):
        for figure in draw(path.stem, read_table(path).frame):
            files += figure.write(path.parent)
    for path, picture in track(sorted(arrays, key=lambda p: p[0]), "Arrays", progress=progress):
        with np.load(path, allow_pickle=False) as archive:
            files += picture(path.stem, dict(archive)).write(path.parent)
    for pattern, write in FILES.items():
        for path in sorted(folder.glob(pattern)):
            files += write(path)
    return files
