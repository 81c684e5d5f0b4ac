"""Work that splits into further pieces while it runs, on several threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Protocol, Self, TypeVar

from nnslicer_tf._environment import available_cores


class Piece(Protocol):
    """A piece of work that may grow while it is done."""

    @property
    def is_large(self) -> bool:
        """Whether it is unfinished, and should and can be split."""

    def split(self) -> tuple[Self, Self]:
        """Return two pieces that replace it."""


P = TypeVar("P", bound=Piece)


def run_splitting(first: P, advance: Callable[[P], bool], workers: int) -> None:
    """Do a piece of work and all pieces that it splits into; return when all are done.

    Threads (0 workers: one per core) start only if the first piece splits. The most recent piece is
    done first, so that few wait. `advance` does a step of a piece, and returns whether any was
    left. Its exceptions, and `KeyboardInterrupt`, are raised once the pieces in progress are done.
    """
    waiting: list[P] = []

    def finish(piece: P, split: list[P]) -> None:
        unfinished = True
        while unfinished:
            while piece.is_large:
                piece, second = piece.split()
                split.append(second)
            unfinished = advance(piece)

    finish(first, waiting)
    workers = workers or available_cores()
    while waiting and workers == 1:
        finish(waiting.pop(), waiting)
    if not waiting:
        return

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
            split: list[P] = []
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
