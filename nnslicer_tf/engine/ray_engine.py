"""Work on Ray: across the cores of one machine, or of a cluster.

Each actor is a single-threaded process with a copy of the job, and has two items queued, so that it
does not wait for the driver and memory is bounded. If an actor dies, its replacement repeats its
items; each result is used exactly once.
"""

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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


class _Worker:
    """An actor, which holds the job and runs it on one item at a time."""

    def __init__(self, job: Callable[[Any], Any]) -> None:
        self._job = job

    def run(self, item: Any) -> Any:
        return self._job(item)


class RayEngine:
    """Runs jobs on Ray actors; with an address, `workers=None` means one per core of the cluster.

    `address` is that of a running cluster ("auto" for this machine's); None starts a new one on
    this machine, and stops it at the end. Raises MissingPackageError if Ray is not installed,
    InvalidArgumentError if nobody listens at the address.
    """

    def __init__(self, workers: int | None, address: str | None = None) -> None:
        self._ray = require(
            "ray",
            "`workers` and `ray_address` need",
            "Without it, workers=None uses threads, workers=0 one.",
        )
        self._workers = workers
        self._address = address
        if address is None or self._ray.is_initialized():
            return
        # Ray itself would try for minutes to reach an address at which nobody listens.
        place = urlsplit(address if "://" in address else f"//{address}")
        try:
            if place.hostname is not None and place.port is not None:  # not "auto" or "local"
                target = (place.hostname, place.port)
                socket.create_connection(target, timeout=CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            raise self._no_cluster(error) from error

    def _no_cluster(self, error: Exception) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"No Ray cluster answers at ray_address={self._address!r} ({error}). Start one with "
            "'ray start --head', or leave ray_address out to use the cores of this machine."
        )

    def _start(self) -> None:
        options: dict[str, Any] = {"address": self._address}
        if self._address is None:
            options = {
                "address": "local",  # not a cluster that is already running on this machine
                "num_cpus": self._workers,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
        try:
            self._ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
        except (ConnectionError, ValueError) as error:
            if self._address is None:
                raise
            raise self._no_cluster(error) from error

    def map(self, job: Callable[[Any], T], items: Iterable[tuple[int, Any]]) -> Iterator:
        """Yield `(index, job(item))` as results arrive; WorkerError after three failures."""
        ray = self._ray
        started_here = not ray.is_initialized()
        if started_here:
            self._start()
        actors: list[Any] = []
        tasks: dict[Any, _Task] = {}

        def submit(task: _Task) -> None:
            tasks[actors[task.actor].run.remote(task.item)] = task

        def retry(task: _Task, error: Exception) -> None:
            task.attempts += 1
            if task.attempts >= MAX_ATTEMPTS:
                raise WorkerError(
                    f"Batch {task.index} failed {MAX_ATTEMPTS} times on a worker. The last "
                    f"failure: {type(error).__name__}: {error}"
                ) from error
            submit(task)

        try:
            shared = ray.put(job)
            actor_class = ray.remote(num_cpus=1)(_Worker)
            count = self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
            actors += [actor_class.remote(shared) for _ in range(count)]
            stream = iter(items)
            while True:
                # The least busy actors get new items while there is room.
                while len(tasks) < QUEUED_PER_ACTOR * count:
                    following = next(stream, None)
                    if following is None:
                        break
                    load = Counter(task.actor for task in tasks.values())
                    submit(_Task(*following, min(range(count), key=load.__getitem__)))
                if not tasks:
                    return
                (reference, *_), _ = ray.wait(list(tasks), num_returns=1)
                task = tasks.pop(reference)
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayActorError as error:
                    _LOG.warning("A worker died and is replaced; its batches are done again.")
                    lost = [r for r, other in tasks.items() if other.actor == task.actor]
                    others = [tasks.pop(reference) for reference in lost]
                    actors[task.actor] = actor_class.remote(shared)
                    retry(task, error)
                    for other in others:
                        submit(other)
                except ray.exceptions.RayTaskError as error:
                    retry(task, error.cause or error)
                else:
                    yield task.index, result
        finally:
            for actor in actors:
                ray.kill(actor)
            if started_here:
                ray.shutdown()
