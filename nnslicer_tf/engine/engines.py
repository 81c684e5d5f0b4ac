"""Engines, which run work in this process, on its threads, or on Ray if it takes long.

An engine maps a job over a stream of items and yields `(index, result)` as results arrive.
The stream is read only as fast as items are processed, so memory is bounded.
"""

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from nnslicer_tf._environment import available_cores, is_installed

Item = tuple[int, Any]
T = TypeVar("T")

_LOG = logging.getLogger(__name__)

# Starting Ray and its workers takes about five seconds. It saves the time that threads lose to
# the GIL, which is little on few cores.
PATIENCE_SECONDS = 30.0


class Job(ABC):
    """The work to do on each item. A job whose items consist of samples can be split."""

    @property
    def compiles_first(self) -> bool:
        """Whether the first item has to wait for a compiler, which takes seconds."""
        return False

    @abstractmethod
    def __call__(self, item: Any) -> Any:
        """Return the result of an item."""

    def split(self, item: Any, parts: int) -> Sequence[Any]:
        """Return smaller items, `parts` or more, that together hold the item's samples in order."""
        return [item]

    def join(self, results: Sequence[Any]) -> Any:
        """Combine the results of an item's parts into the item's result."""
        (result,) = results
        return result


class Engine(Protocol):
    """An object that runs a job on many items."""

    def map(self, job: Job, items: Iterable[Item]) -> Iterator[tuple[int, Any]]:
        """Yield `(index, job(item))` for every `(index, item)`, in any order."""


def in_order(results: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
    """Yield results by index, so that nothing depends on which worker finishes first."""
    waiting: dict[int, T] = {}
    expected = 0
    for index, result in results:
        waiting[index] = result
        while expected in waiting:
            yield expected, waiting.pop(expected)
            expected += 1


class ThreadEngine:
    """Runs the parts of each item on threads; compiled kernels release the GIL to use all cores."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def map(self, job: Job, items: Iterable[Item]) -> Iterator[tuple[int, Any]]:
        """Yield `(index, job(item))` in order."""
        if self._threads == 1:
            for index, item in items:
                yield index, job(item)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            for index, item in items:
                yield index, job.join(list(pool.map(job, job.split(item, self._threads))))


class AdaptiveEngine:
    """Runs jobs on threads, and switches to as many Ray actors, if installed, for long work."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def map(self, job: Job, items: Iterable[Item]) -> Iterator[tuple[int, Any]]:
        """Yield `(index, job(item))`; results from this process are in order."""
        threads = ThreadEngine(self._workers)
        if not is_installed("ray"):
            yield from threads.map(job, items)
            return
        from nnslicer_tf.engine.ray_engine import RayEngine

        stream = iter(items)
        end = time.monotonic() + PATIENCE_SECONDS

        def first() -> Iterator[Item]:
            for item in stream:
                yield item
                if time.monotonic() > end:
                    return

        yield from threads.map(job, first())
        following = next(stream, None)
        if following is None:
            _LOG.info("The work was too short for Ray workers and ran in this process.")
            return
        _LOG.info("The work continues with %d Ray workers.", self._workers)
        yield from RayEngine(self._workers).map(job, itertools.chain([following], stream))


def make_engine(workers: int | None, ray_address: str | None = None) -> Engine:
    """Return the engine for `workers` (None: one per core, on Ray if the work takes long)."""
    if workers == 0:
        return ThreadEngine()
    if workers is not None or ray_address is not None:
        from nnslicer_tf.engine.ray_engine import RayEngine

        return RayEngine(workers or 1 if ray_address is None else workers, ray_address)
    cores = available_cores()
    return AdaptiveEngine(cores) if cores > 1 else ThreadEngine()
