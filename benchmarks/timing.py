"""The time that a piece of work takes, and the folders, for the benchmarks beside this file."""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "data"
sys.path.append(str(ROOT / "apps"))  # for `reproduction`


def median_seconds(work: Callable[[], object], runs: int) -> tuple[float, float]:
    """Return the median seconds on the wall clock and on the processor, of all threads.

    Args:
        work: The work; it is done once more before, to compile and to fill caches.
        runs: How often to time it.
    """
    walls, processors = [], []
    work()
    for _ in range(runs):
        wall, processor = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return statistics.median(walls), statistics.median(processors)
