"""Work on Ray: across the cores of one machine, or of a cluster.

Each actor is a single-threaded process that holds one copy of the job. Two items are queued for
each actor, so that it does not have to wait for the driver and memory is bounded. If an actor dies,
its replacement repeats its items; each result is used exactly once.
"""

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from nnslicer_tf._environment import require
from nnslicer_tf.errors import InvalidArgumentError, WorkerError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

QUEUED_PER_ACTOR = 2
MAX_ATTEMPTS = 3
OBJECT_STORE_BYTES = 1 << 30
CONNECT_SECONDS = 5.0


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
        InvalidArgumentError: if nobody listens at the address.
    """

    def __init__(self, workers: int | None, address: str | None = None) -> None:
        self._ray = require(
            "ray",
            "`workers` and `ray_address` need",
            "Without it, workers=None uses threads, workers=0 one.",
        )
        self._workers = workers
        self._address = address
        if address is not None and not self._ray.is_initialized():
            _check_address(address)

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
            try:
                ray.init(address=self._address, **options)
            except (ConnectionError, ValueError) as error:
                raise _no_cluster(self._address, error) from error
            return
        ray.init(
            address="local",  # not a cluster that is already running on this machine
            num_cpus=self._workers,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            **options,
        )

    def _count(self, ray: ModuleType) -> int:
        return self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))


def _check_address(address: str) -> None:
    """Reject an address at which nobody listens: Ray itself would try for minutes.

    Raises:
        InvalidArgumentError: if nobody listens there.
    """
    place = urlsplit(address if "://" in address else f"//{address}")
    try:
        port = place.port
        if place.hostname is None or port is None:  # "auto", "local", or no address
            return
        socket.create_connection((place.hostname, port), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"No Ray cluster answers at ray_address={address!r} ({error}). Start one with "
        "'ray start --head', or leave ray_address out to use the cores of this machine."
    )


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
        return len(self._tasks) < QUEUED_PER_ACTOR * len(self._actors)

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
        if task.attempts >= MAX_ATTEMPTS:
            raise WorkerError(
                f"Batch {task.index} failed {MAX_ATTEMPTS} times on a worker. The last failure: "
                f"{type(error).__name__}: {error}"
            ) from error
        self._submit(task)


class _Worker:
    """An actor, which holds the job and runs it on one item at a time."""

    def __init__(self, job: Callable[[Any], Any]) -> None:
        self._job = job

    def run(self, item: Any) -> Any:
        return self._job(item)
