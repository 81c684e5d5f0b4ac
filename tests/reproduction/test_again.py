"""Cheap tables, made again by `apps/reproduce.py` and compared with the committed ones."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from reproduction import again
from reproduction.catalogue import load_catalogue
from reproduction.settings import DATA

ROOT = Path(__file__).parents[2]
# One of NNSlicer's figures and one of ExactLine's; minutes each.
CHEAP = (
    "nnslicer/figure2",
    "nnslicer/special-cases",
    "exactline/figure2",
    "deepxplore/prune",
    "decisive/maps-lenet5",
)
MOST = 0.01  # difference; another processor has other last bits


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAP)
def test_a_table_comes_out_as_committed(name, shared_data, tmp_path):
    files = ["--files", str(shared_data / "acasxu")]
    command = ["apps/reproduce.py", "all", "--only", name, "--folder", str(tmp_path), *files]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{name}: ")]
    kept = again.commands_of(load_catalogue()[name], DATA / "results")
    assert len(lines) == sum(map(len, kept.values())) > 0, done.stdout + done.stderr
    for line in lines:
        differences = [float(value) for value in re.findall(r"by up to (\S+?)(?:,|$)", line)]
        assert line.endswith(" is equal") or (differences and max(differences) < MOST), line
