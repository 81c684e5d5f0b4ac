"""What the changelog says has gone is gone, and what it names in its place exists."""

import importlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nnslicer_tf import deepbase

TEXT = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
TABLE = TEXT[TEXT.index("| was | now |") : TEXT.index("### Fixed")]
ROWS = [line.split("|")[1:3] for line in TABLE.splitlines()[2:] if line.startswith("|")]


def find(name):
    """What a dotted name names."""
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].split("`")[1])
def test_the_replacement_exists(row):
    was, now = (re.findall(r"`([\w.]+)`", cell) for cell in row)
    now = [name for name in now if name.startswith(("nnslicer_tf.", "reproduction."))]
    assert was and now
    for name in was:
        with pytest.raises(AttributeError):
            find(f"nnslicer_tf.{name}")
    for name in now:
        assert find(name) is not None


def test_what_a_model_has_not_learned():
    """The replacement of `deepbase.unlearned`, on units that are known."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    frame = pd.DataFrame(
        {
            "model": "m",
            "group": "layer",
            "unit": [0, 1, 0, 1],
            "hypothesis": ["first", "first", "noise", "noise"],
            "measure": "correlation",
            "score": [np.corrcoef(x[:, i], y)[0, 1] for y in (x[:, 0], x[:, 2]) for i in (0, 1)],
        }
    )
    best = deepbase.best_units(frame, count=1).set_index("hypothesis")["score"].abs()
    assert list(best.index[best < 0.2]) == ["noise"]
