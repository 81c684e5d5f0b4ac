"""`--help` of every script: at once, so without what takes seconds to import."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = ("_help", "memory", "naive", "timing")  # of the benchmarks; no scripts
SCRIPTS = [path for path in sorted(ROOT.glob("benchmarks/*.py")) if path.stem not in MODULES]
CODE = """
import os, runpy, sys
sys.argv = [sys.argv[1], "--help"]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
real = [name for name in ("tensorflow", "jax", "torch", "matplotlib") if name in sys.modules]
print(real, getattr(sys.modules.get("keras"), "__file__", "") and "keras")
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_help_of_a_benchmark_is_there_without_tensorflow(path):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=True
    )
    assert "--help" in done.stdout and done.stdout.splitlines()[-1] == "[] ", done.stdout[-300:]
