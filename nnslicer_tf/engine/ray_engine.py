"""Work on Ray: across the cores of one machine, or of a cluster.

Each actor is a single-threaded process that holds one copy of the job. Two items are queued for
each actor, so that it does not have to wait for the driver and memory is bounded. If an actor dies,
its replacement repeats its items; each result is used exactly once.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from nnslicer_tf._extras import require
from nnslicer_tf.errors import WorkerError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_QUEUED_PER_ACTOR = 2
_ATTEMPTS = 3
_OBJECT_STORE_BYTES = 1 << 30


@dataclass
class _Task:
    index: int
    item: Any
    actor: int
    attempts: int = 0


class RayEngine:
    """Runs jobs on Ray actors.

    Args:
        workers: Number of actors; with an address, None means one per core of the cluster.
        address: Address of a running cluster ("auto" for this machine's). None starts a new one
            on this machine, separate from any that are already running, and stops it at the end.

    Raises:
        MissingPackageError: if Ray is not installed.
    """

    def __init__(self, workers: int | None, address: str | None = None) -> None:
        self._ray = require(
            "ray",
            "A number of workers asks for processes, and an address for a cluster; both are of",
            "Without it, workers=None uses threads, workers=0 one.",
        )
        self._workers = workers
        self._address = address

    def map(self, job: Callable[[Any], T], items: Iterable[tuple[int, Any]]) -> Iterator:
        """Yield `(index, job(item))` as results arrive.

        Raises:
            WorkerError: if the same item fails three times.
        """
        ray = self._ray
        started_here = not ray.is_initialized()
        if started_here:
            self._start(ray)
        actors: list[Any] = []
        try:
            yield from _Pool(ray, actors, self._count(ray), job).run(items)
        finally:
            for actor in actors:
                ray.kill(actor)
            if started_here:
                ray.shutdown()

    def _start(self, ray: ModuleType) -> None:
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if self._address is not None:
            ray.init(address=self._address, **options)
            return
        ray.init(
            address="local",  # not a cluster that is already running on this machine
            num_cpus=self._workers,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            **options,
        )

    def _count(self, ray: ModuleType) -> int:
        return self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))


class _Pool:
    """The actors of one call of `map`, and the tasks queued for them."""

    def __init__(self, ray: ModuleType, actors: list[Any], workers: int, job: Callable) -> None:
        self._ray = ray
        self._actors = actors
        self._job = ray.put(job)
        self._actor_class = ray.remote(num_cpus=1)(_Worker)
        actors.extend(self._actor_class.remote(self._job) for _ in range(workers))
        self._tasks: dict[Any, _Task] = {}
        self._again: deque[_Task] = deque()

    def run(self, items: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        stream = iter(items)
        exhausted = False
        while True:
            while not exhausted and self._has_room():
                try:
                    index, item = next(stream)
                except StopIteration:
                    exhausted = True
                else:
                    self._submit(_Task(index, item, self._least_busy()))
            if not self._tasks:
                return
            ready, _ = self._ray.wait(list(self._tasks), num_returns=1)
            yield from self._collect(ready[0])

    def _has_room(self) -> bool:
        return len(self._tasks) < _QUEUED_PER_ACTOR * len(self._actors)

    def _least_busy(self) -> int:
        load = [0] * len(self._actors)
        for task in self._tasks.values():
            load[task.actor] += 1
        return load.index(min(load))

    def _submit(self, task: _Task) -> None:
        self._tasks[self._actors[task.actor].run.remote(task.item)] = task

    def _collect(self, reference: Any) -> Iterator[tuple[int, Any]]:
        task = self._tasks.pop(reference)
        try:
            result = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            self._replace(task, error)
        except self._ray.exceptions.RayTaskError as error:
            self._retry(task, error.cause or error)
        else:
            yield task.index, result

    def _replace(self, task: _Task, error: Exception) -> None:
        """Replace a dead actor by a new one, and give it all tasks of the dead one."""
        _LOG.warning("A worker died and is replaced; its batches are done again.")
        lost = {r: t for r, t in self._tasks.items() if t.actor == task.actor}
        for reference in lost:
            del self._tasks[reference]
        self._actors[task.actor] = self._actor_class.remote(self._job)
        self._retry(task, error)
        for other in lost.values():
            self._submit(other)

    def _retry(self, task: _Task, error: Exception) -> None:
        task.attempts += 1
        if task.attempts >= _ATTEMPTS:
            raise WorkerError(
                f"Batch {task.index} failed {_ATTEMPTS} times on a worker. The last failure: "
                f"{type(error).__name__}: {error}"
            ) from error
        self._submit(task)


class _Worker:
    """An actor, which holds the job and runs it on one item at a time."""

    def __init__(self, job: Callable[[Any], Any]) -> None:
        self._job = job

    def run(self, item: Any) -> Any:
        return self._job(item)
