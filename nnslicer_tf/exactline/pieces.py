"""Work that splits into further pieces while it runs, on several threads."""

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, Self, TypeVar

from nnslicer_tf._environment import available_cores


class Piece(Protocol):
    """A piece of work that may grow while it is done."""

    @property
    def is_large(self) -> bool:
        """Whether it is unfinished, and should and can be split."""

    def split(self) -> tuple[Self, Self]:
        """Return two pieces that replace it."""


P = TypeVar("P", bound=Piece)


def longest(parts: Mapping[str, Any]) -> Any:
    """Return the one of several `Curve`s or `Steps` that has the most rows for each position."""
    return max(parts.values(), key=lambda part: len(part.ratio) / part.positions)


def run_splitting(first: P, advance: Callable[[P], bool], workers: int) -> None:
    """Do a piece of work and all pieces that it splits into; return when all are done.

    Threads (0 workers: one per core) start only if the first piece splits. The most recent piece is
    done first, so that few wait. `advance` does a step of a piece, and returns whether any was
    left. Its exceptions, and `KeyboardInterrupt`, are raised once the pieces in progress are done.
    """

    def finish(piece: P) -> list[P]:
        """Finish a piece, and return those that were split off."""
        split, unfinished = [], True
        while unfinished:
            while piece.is_large:
                piece, second = piece.split()
                split.append(second)
            unfinished = advance(piece)
        return split

    waiting = finish(first)
    workers = workers or available_cores()
    if not waiting:
        return
    with ThreadPoolExecutor(workers) as pool:
        running: set[Future[list[P]]] = set()
        while waiting or running:
            while waiting and len(running) < workers:
                running.add(pool.submit(finish, waiting.pop()))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                waiting += future.result()
