"""The training script, from its command line to its files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnslicer_tf import datasets, zoo

SCRIPT = Path(__file__).parents[3] / "apps" / "train.py"


def _run(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=tmp_path,
        env=os.environ | {"TERM": "dumb", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_quick_training_writes_weights_and_a_log(tmp_path):
    done = _run(tmp_path, "digits_cnn", "--quick", "--seed", "3")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "train-digits_cnn-digits-quick-3"
    report = json.loads((folder / "digits_cnn-digits-quick.json").read_text())
    assert [row["epoch"] for row in report["history"]] == [1, 2]
    assert (report["seed"], report["parameters"]) == (3, 6090)
    model = zoo.build("digits_cnn")
    model.load_weights(folder / "quick.weights.h5")
    test = datasets.load("digits", "test")
    assert zoo.accuracy(model, test) == pytest.approx(report["test_accuracy"], abs=0.005)
