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


@compiled()
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


AHEAD = """
import numpy as np

from nnslicer_tf._kernels import pools
from nnslicer_tf._kernels.ahead import PARTS, USUAL, compile_ahead
from nnslicer_tf._kernels.compiled import COMPILING, KERNELS

assert not any(kernel.on_disk for kernel in KERNELS)
compile_ahead()
compile_ahead()
started = len(COMPILING)
sign, x = np.ones((1, 1, 1), np.int8), np.ones((1, 1, 1), np.float32)
found = pools.maximum(sign, x, x, sign, np.zeros((1, 1), np.int32))
print(found.item(), started, *(process.returncode for process in COMPILING))
print(all(kernel.on_disk for part in USUAL for kernel in PARTS[part]))
print(sum(kernel.ready for kernel in KERNELS), any(k.on_disk for k in PARTS["products"]))
COMPILING.clear()
compile_ahead()
print(len(COMPILING))
compile_ahead(["products"])
print(len(COMPILING))
"""


def test_kernels_are_compiled_ahead_by_other_processes(tmp_path):
    """A call waits for them and loads what they compiled; what is on disk is left alone."""
    done = subprocess.run(
        [sys.executable, "-c", AHEAD],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.splitlines() == ["1 2 0 0", "True", "1 False", "0", "1"]
