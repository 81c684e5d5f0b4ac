"""Redraw figures from their tables, or from the arrays saved beside them.

So a change in their appearance needs no new measurement. `[redraw]` of `catalogue.toml` maps
patterns of files below the folder of results to the function that draws a figure from one (of its
rows or arrays), the figure's resolution, and what to replace in the file's name.
"""

import importlib
import inspect
import shutil
import tempfile
from pathlib import Path

import numpy as np

from nnslicer_tf._environment import track
from reproduction.catalogue import load_catalogue
from reproduction.result import ExperimentFigure
from reproduction.tables import read_table


def redraw(folder: Path, progress: bool = True) -> list[Path]:
    """Redraw the figures of a folder of results, and return their files."""
    patterns = load_catalogue().redraw.items()
    ways = {path: way for pattern, way in patterns for path in folder.glob(pattern)}
    files = []
    for path in track(sorted(ways), "Figures", progress=progress):
        name, dpi, old, new = (*ways[path], *(None, 110, "", "")[len(ways[path]) :])
        module, _, function = name.partition(":")
        draw = getattr(importlib.import_module(f"reproduction.{module}"), function)
        takes = inspect.signature(draw).parameters
        if "images" in takes:  # it reads the tables beside it, too
            drawn = list(draw(path))
        else:
            if path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as archive:
                    source = dict(archive)
            else:
                source = read_table(path).frame
            drawn = draw(path.stem, source) if "name" in takes else draw(source)
        if not isinstance(drawn, list):
            stem = path.stem.replace(old, new) if old else path.stem
            drawn = [ExperimentFigure(stem, drawn, dpi)]
        for figure in drawn:
            files += figure.write(path.parent)
    for path in folder.glob("demo/slices.png"):  # measured anew, which takes seconds
        from nnslicer_tf.cli.slices import demo

        with tempfile.TemporaryDirectory() as temporary:
            demo(Path(temporary))
            shutil.copyfile(Path(temporary) / path.name, path)
        files.append(path)
    return files
