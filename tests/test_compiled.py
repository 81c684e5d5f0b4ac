"""Compiled code on disk: what one process compiled, another loads, whatever they run at once."""

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
