"""Where batches are walked: in this process, or in it until Ray pays.

An engine maps a job over a stream of items and yields `(index, result)` as results
come; the stream is read as fast as it is worked off, so memory is bounded.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

__all__ = ["AdaptiveEngine", "Engine", "InProcessEngine", "make_engine"]

Item = tuple[int, Any]
T = TypeVar("T")

_LOG = logging.getLogger(__name__)

# Starting Ray and its workers takes some five seconds: it pays for work of twice that.
_PATIENCE_SECONDS = 10.0


class Engine(Protocol):
    """Something that runs a job on many items."""

    def map(self, job: Callable[[Any], T], items: Iterable[Item]) -> Iterator[tuple[int, T]]:
        """Yield `(index, job(item))` for every `(index, item)`, in any order."""


class InProcessEngine:
    """Runs jobs one after the other in this process."""

    def map(self, job: Callable[[Any], T], items: Iterable[Item]) -> Iterator[tuple[int, T]]:
        """Yield `(index, job(item))` in order."""
        for index, item in items:
            yield index, job(item)


class AdaptiveEngine:
    """Begins in this process, and starts Ray when the work turns out to be long.

    Args:
        workers: Number of Ray actors to start.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def map(self, job: Callable[[Any], T], items: Iterable[Item]) -> Iterator[tuple[int, T]]:
        """Yield `(index, job(item))`, in order while in this process."""
        from nnslicer_tf.slicing.ray_engine import RayEngine

        stream = iter(items)
        started = time.monotonic()
        for index, item in stream:
            yield index, job(item)
            if time.monotonic() - started > _PATIENCE_SECONDS:
                _LOG.info("Slicing goes on with %d Ray workers.", self._workers)
                yield from RayEngine(self._workers).map(job, stream)
                return
        _LOG.info("Slicing was too short for Ray workers and ran in this process.")


def make_engine(workers: int | None, ray_address: str | None) -> Engine:
    """Return the engine for `workers` (None: as many as cores, where it pays)."""
    import os

    if workers == 0:
        return InProcessEngine()
    if workers is not None or ray_address is not None:
        from nnslicer_tf.slicing.ray_engine import RayEngine

        return RayEngine(workers or 1 if ray_address is None else workers, ray_address)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return AdaptiveEngine(cores) if cores and cores > 1 else InProcessEngine()
