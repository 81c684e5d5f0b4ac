"""Compiled code on disk: what one process compiled, another loads, whatever they run at once."""

import os
import pickle
import subprocess
import sys

# With a slow disk, both processes read the index before one of them has written it.
SCRIPT = """
import sys, time
from pathlib import Path

import numpy as np
from numba.core.caching import IndexDataCacheFile

from nnslicer_tf._kernels.compiled import compiled

write = IndexDataCacheFile._save_index
IndexDataCacheFile._save_index = lambda *args: (time.sleep(1), write(*args))


@compiled
def add_up(x):
    total = 0.0
    for value in x:
        total += value
    return total


marker = Path(sys.argv[1])
marker.touch()
while len(list(marker.parent.glob("ready*"))) < 2:
    time.sleep(0.001)
for kind in sys.argv[2:]:
    print(add_up(np.arange(10).astype(kind)), sum(add_up.stats.cache_hits.values()))
"""


def test_two_processes_compile_two_signatures_at_once(tmp_path):
    """Numba's own cache gives a third process one function for both."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def start(marker, *kinds):
        command = [sys.executable, script, tmp_path / marker, *kinds]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    for process in [start("ready0", "float32"), start("ready1", "float64")]:
        process.communicate(timeout=120)
        assert process.returncode == 0
    both, _ = start("ready0", "float32", "float64").communicate(timeout=120)
    assert both.splitlines() == ["45.0 1", "45.0 2"]


def test_an_index_with_classes_that_are_gone_counts_as_empty(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "ready1").touch()  # nothing to wait for
    command = [sys.executable, script, tmp_path / "ready0", "float32"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba")}

    def found():
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert found() == ["45.0", "0"]
    (index,) = (tmp_path / "numba").rglob("*.nbi")
    with index.open("r+b") as file:
        pickle.load(file)  # Numba's version; then come the entries, which may name classes
        file.truncate(file.seek(file.tell()))
        file.write(b"cno_such_module\nPoints\n.")
    assert found() == ["45.0", "0"]
    assert found() == ["45.0", "1"]


WARM = """
from nnslicer_tf._kernels import compile_all, pools, sums

compile_all()
for kernel in (sums._weighted_sum, pools._maximum, pools._add_taps, pools.copy_nonzero):
    print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""

FIRST_SLICE = """
import multiprocessing.process, subprocess, threading

import keras, numpy as np
import nnslicer_tf as nns
from nnslicer_tf._kernels import sums

def refuse(*arguments, **options):
    raise AssertionError("a process was started")

subprocess.Popen = multiprocessing.process.BaseProcess.start = refuse
x = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(2)])
threads = threading.active_count()
profile = nns.Profile.from_data(model, x, progress=False)
slicer = nns.Slicer(model, profile, theta=0.2, workers=0, progress=False).at_theta(0.3)
assert not sums.is_compiled()
slicer.slice(x, outputs="predicted")
print(sums.is_compiled())
"""


def test_kernels_are_compiled_at_the_first_slice_or_by_warmup_and_in_this_process(tmp_path):
    """No constructor compiles or starts a process; what is on disk is loaded by others."""

    def out(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        return done.stdout.splitlines()

    assert out("-W", "error::ResourceWarning", "-c", FIRST_SLICE) == ["True"]
    assert out("-m", "nnslicer_tf.cli", "warmup") == [
        "The kernels are compiled, for this user on this machine."
    ]
    assert out("-c", WARM) == ["1 0"] * 4
