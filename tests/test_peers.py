"""The comparison with peers: a library that is missing has a row, and the others are measured."""

import runpy
import sys
from pathlib import Path

import numpy as np

from nnslicer_tf import datasets, zoo

ROOT = Path(__file__).parents[1]


def test_a_missing_library_has_a_row(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "apps"))
    monkeypatch.setitem(sys.modules, "xplique", None)
    peers = runpy.run_path(str(ROOT / "benchmarks" / "peers" / "compare.py"))
    names = ["Xplique: Occlusion", "nnslicer_tf: DeepExplainer"]
    for name in set(peers["PIXELS"]) - set(names):
        del peers["PIXELS"][name]
    model, x = zoo.load("digits_cnn"), datasets.load("digits", "test[:12]").x
    rows = {row["method"]: row for row in peers["pixels"](model, x[:2], x[2:])}
    assert "xplique" in rows[names[0]]["note"] and "deletion" not in rows[names[0]]
    found = rows[names[1]]
    assert found["lines"] == 2 and found["error of the sum"] < 1e-3
    assert 0 < found["deletion"] < found["insertion"] < 1
    assert np.isfinite(found["s per sample"])
