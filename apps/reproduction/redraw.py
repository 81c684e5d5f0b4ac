"""Redraw figures from their tables, or from the arrays saved beside them.

So a change in their appearance needs no new measurement. `[redraw]` of `catalogue.toml` maps
patterns of files below the folder of results to the function that draws a figure from one (of its
rows or arrays), the figure's resolution, and what to replace in the file's name.
"""

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nnslicer_tf._environment import track
from reproduction.catalogue import load_catalogue
from reproduction.result import ExperimentFigure
from reproduction.result_tables import read_table


def redraw(folder: Path, progress: bool = True) -> list[Path]:
    """Redraw the figures of a folder of results, and return their files."""
    drawn = {
        path: way
        for pattern, way in load_catalogue().redraw.items()
        for path in folder.glob(pattern)
    }
    files = []
    for path in track(sorted(drawn), "Figures", progress=progress):
        for figure in _figures(path, *drawn[path]):
            files += figure.write(path.parent)
    return files


def _figures(
    path: Path, name: str, dpi: int = 110, old: str = "", new: str = ""
) -> Iterator[ExperimentFigure]:
    module, _, function = name.partition(":")
    draw = getattr(importlib.import_module(f"reproduction.{module}"), function)
    takes = inspect.signature(draw).parameters
    if "images" in takes:  # it reads the tables beside it, too
        yield from draw(path)
        return
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            arguments = [dict(archive)]
    else:
        arguments = [read_table(path).frame]
    figure = draw(path.stem, *arguments) if "name" in takes else draw(*arguments)
    if isinstance(figure, list):
        yield from figure
    else:
        yield ExperimentFigure(path.stem.replace(old, new) if old else path.stem, figure, dpi)
