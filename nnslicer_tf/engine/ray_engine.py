"""Work on Ray: across the cores of one machine, or of a cluster.

Each actor is a single-threaded process with a copy of the job, and has two items queued, so that it
does not wait for the driver and memory is bounded. If an actor dies, its replacement repeats its
items; each result is used exactly once. Starting has a time limit, and can be interrupted.
"""

import logging
import socket
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, RLock, Thread
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from nnslicer_tf._environment import require
from nnslicer_tf.errors import InvalidArgumentError, WorkerError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

QUEUED_PER_ACTOR = 2
MAX_ATTEMPTS = 3
OBJECT_STORE_BYTES = 1 << 30
CONNECT_SECONDS = 5.0
START_SECONDS = 60.0  # for Ray, and then for the first actor

# The start of HTTP/2, which a cluster speaks: the client's preface, with empty settings.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS = 4  # type of the frame that is the answer, in its fourth byte


@dataclass
class _Task:
    index: int
    item: Any
    actor: int
    attempts: int = 0


@dataclass
class _Session:
    """The Ray that an engine has started, which ends with the last engine that uses it."""

    over: Event  # ends the thread that started Ray
    node: str = ""  # Ray's own name of it, which tells it from one that the user starts later
    users: int = 0


class _Worker:
    """An actor, which holds the job and runs it on one item at a time."""

    def __init__(self, job: Callable[[Any], Any]) -> None:
        self._job = job

    def ready(self) -> None:
        """Return once the actor has started."""

    def run(self, item: Any) -> Any:
        return self._job(item)


class RayEngine:
    """Runs jobs on Ray actors; with an address, `workers=None` means one per core of the cluster.

    Where Ray is initialized, it is used as it is. Else `address` is that of a running cluster
    ("auto" for this machine's); None starts one, which engines of threads share and the last one
    stops. If it does not start, or has no free core, a warning says so, and threads do the work.
    Raises MissingPackageError without Ray, InvalidArgumentError if no cluster is at the address.
    """

    _turn: ClassVar = RLock()  # held by the thread that starts or stops Ray
    _session: ClassVar[_Session | None] = None

    def __init__(self, workers: int | None, address: str | None = None) -> None:
        if address is not None and not isinstance(address, str):
            raise InvalidArgumentError(f"ray_address must be a string. Received: {address!r}")
        self._ray = require(
            "ray",
            "`workers` and `ray_address` need",
            "Without it, workers=None uses threads, workers=0 one.",
        )
        self._workers, self._address = workers, address
        if address is None or self._ray.is_initialized():
            return
        # Ray itself would try for minutes, or for ever, at an address of no cluster.
        try:
            place = urlsplit(address if "://" in address else f"//{address}")
            if place.hostname is not None and place.port is not None:  # not "auto" or "local"
                target = (place.hostname, place.port)
                with socket.create_connection(target, timeout=CONNECT_SECONDS) as connection:
                    connection.sendall(_PREFACE)
                    answer = connection.recv(9)
                if len(answer) < 4 or answer[3] != _SETTINGS:
                    raise ValueError("another program is listening at that address")
        except (OSError, ValueError) as error:
            raise self._no_cluster(error) from error

    def _no_cluster(self, error: Exception) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"No Ray cluster is available at ray_address={self._address!r} ({error}). Start one "
            "with 'ray start --head', or omit ray_address to use the cores of this machine."
        )

    def _enter(self) -> _Session | None:
        """Start Ray unless this process has it; return the session, or None if it is the user's."""
        with self._turn:
            if not self._ray.is_initialized():
                session = RayEngine._session = _Session(Event())
                try:
                    self._start(session.over)
                except BaseException:  # also Ctrl-C
                    self._ray.shutdown()
                    session.over.set()
                    raise
                session.node = self._node()
            known = RayEngine._session
            if known is None or known.node != self._node():
                return None
            known.users += 1
            return known

    def _node(self) -> str:
        is_running = self._ray.is_initialized()
        return self._ray.get_runtime_context().get_node_id() if is_running else ""

    def _leave(self, session: _Session | None, actors: Iterable[Any]) -> None:
        """End the actors, and an engine's Ray with its last user, unless the user has done so."""
        with self._turn:
            for actor in actors if self._ray.is_initialized() else ():
                with suppress(self._ray.exceptions.RayError):  # such as for an earlier Ray's
                    self._ray.kill(actor)
            if session is None:
                return
            session.users -= 1
            if session.users == 0:
                if self._node() == session.node:
                    self._ray.shutdown()
                session.over.set()

    def _start(self, over: Event) -> None:
        """Start or join a cluster; raise RuntimeError if it takes too long or fails.

        It runs in a thread, because Ray cannot be interrupted, and may wait for ever. The thread
        lives as long as the cluster: Linux ends processes with the thread that started them.
        """
        options: dict[str, Any] = {"address": self._address}
        if self._address is None:
            options = {
                "address": "local",  # not a cluster that is already running on this machine
                "num_cpus": self._workers,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
        errors, ended = list[Exception](), Event()

        def start() -> None:
            try:
                self._ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
            except Exception as error:  # Ray raises many kinds
                errors.append(error)
            ended.set()
            over.wait()

        Thread(target=start, name="ray-start", daemon=True).start()
        end = time.monotonic() + START_SECONDS
        while not ended.wait(0.1) and time.monotonic() < end:
            pass  # Ctrl-C is handled in between
        if not ended.is_set():
            raise RuntimeError(f"no answer within {START_SECONDS:g} s")
        if errors:
            raise RuntimeError(str(errors[0])) from errors[0]

    def map(self, job: Callable[[Any], T], items: Iterable[tuple[int, Any]]) -> Iterator:
        """Yield `(index, job(item))` as results arrive; WorkerError after three failures."""
        from nnslicer_tf.engine.engines import ThreadEngine

        ray = self._ray
        session: _Session | None = None
        actors: list[Any] = []
        try:
            session = self._enter()
            is_shared = session is None or session.users > 1
            is_busy = is_shared and ray.available_resources().get("CPU", 0) < 1
            patience = START_SECONDS / (3 if is_busy and self._address is None else 1)
            shared = ray.put(job)
            actor_class = ray.remote(num_cpus=1)(_Worker)
            count = self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
            actors += [actor_class.remote(shared) for _ in range(count)]
            starting = {actor.ready.remote(): place for place, actor in enumerate(actors)}
            if not ray.wait(list(starting), timeout=patience)[0]:
                raise RuntimeError(f"no core was free for a worker within {patience:g} s")
            # The others may have to wait for a core; they join when they have one.
            ray.wait(list(starting), num_returns=count, timeout=CONNECT_SECONDS)
        except BaseException as error:  # also Ctrl-C
            self._leave(session, actors)
            if not isinstance(error, RuntimeError):
                raise
            if self._address is not None:
                raise self._no_cluster(error) from error
            warnings.warn(
                f"Ray could not be used ({error}), so the work runs on threads of this process. "
                "Pass workers=0 to use threads without trying Ray.",
                stacklevel=2,
            )
            yield from ThreadEngine(self._workers or 1).map(job, items)  # type: ignore[arg-type]
            return
        tasks: dict[Any, _Task] = {}
        started: list[int] = []  # places of the actors that have a core

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
            stream = iter(items)
            while True:
                if starting:
                    more, _ = ray.wait(list(starting), num_returns=len(starting), timeout=0)
                    started += [starting.pop(reference) for reference in more]
                # The least busy actors get new items while there is room.
                while len(tasks) < QUEUED_PER_ACTOR * len(started):
                    following = next(stream, None)
                    if following is None:
                        break
                    load = Counter(task.actor for task in tasks.values())
                    submit(_Task(*following, min(started, key=load.__getitem__)))
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
            self._leave(session, actors)
