"""Work that splits into further pieces while it runs, on several threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import TypeVar

from nnslicer_tf._environment import available_cores

Work = TypeVar("Work")


def run_splitting(first: Work, finish: Callable[[Work, list[Work]], None], workers: int) -> None:
    """Do a piece of work and all pieces that it splits into; return when all are done.

    The first piece runs on this thread; threads are started only if it splits. The most recent
    piece is done first, so that few are waiting at a time.

    Args:
        first: The first piece.
        finish: Completes a piece, and appends the pieces that it splits off to the list.
        workers: Number of threads; 0 for as many as there are cores.

    Raises:
        BaseException: any exception that `finish` raises, and `KeyboardInterrupt`, as soon as the
            pieces in progress are finished.
    """
    waiting: list[Work] = []
    finish(first, waiting)
    workers = workers or available_cores()
    if not waiting:
        return
    if workers == 1:
        while waiting:
            finish(waiting.pop(), waiting)
        return
    _run_on_threads(waiting, finish, workers)


def _run_on_threads(
    waiting: list[Work], finish: Callable[[Work, list[Work]], None], workers: int
) -> None:
    changed = Condition()
    busy = 0
    failed = False

    def something_to_know() -> bool:
        return bool(waiting) or not busy or failed

    def work() -> None:
        nonlocal busy, failed
        while True:
            with changed:
                changed.wait_for(something_to_know)
                if failed or not waiting:
                    return
                piece = waiting.pop()
                busy += 1
            split: list[Work] = []
            try:
                finish(piece, split)
            except BaseException:
                failed = True
                raise
            finally:
                with changed:
                    busy -= 1
                    waiting.extend(split)
                    changed.notify_all()

    with ThreadPoolExecutor(workers) as pool:
        try:
            for future in [pool.submit(work) for _ in range(workers)]:
                future.result()
        except BaseException:  # includes interrupts: the threads take no further piece
            with changed:
                failed = True
                changed.notify_all()
            raise
