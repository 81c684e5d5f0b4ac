import signal
import threading
import time
from dataclasses import dataclass

import pytest

from nnslicer_tf.exactline.pieces import run_splitting


@dataclass
class Range:
    """Whole numbers, which split until three are left."""

    start: int
    stop: int

    @property
    def is_large(self):
        return self.stop - self.start > 3

    def split(self):
        middle = (self.start + self.stop) // 2
        return Range(self.start, middle), Range(middle, self.stop)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_piece_is_done_once(workers):
    done, threads = [], set()

    def advance(piece):
        if piece.start == piece.stop:
            return False
        done.append(piece.start)
        threads.add(threading.get_ident())
        piece.start += 1
        return True

    run_splitting(Range(0, 1_000), advance, workers)
    assert sorted(done) == list(range(1_000))
    assert len(threads) <= workers + 1


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_ends_the_work(workers):
    done = []

    def advance(piece):
        if piece.start >= 20:
            raise RuntimeError(f"piece {piece.start}")
        done.append(piece.start)
        return False

    with pytest.raises(RuntimeError, match="piece"):
        run_splitting(Range(0, 1_000), advance, workers)
    assert len(done) < 20


@pytest.fixture
def interruptible():
    """Ctrl-C raises, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_leaves_what_is_waiting(interruptible):
    done, interrupts = [], []

    def advance(piece):
        if len(done) >= 10 and not interrupts:
            interrupts.append(piece.start)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.02)
        done.append(piece.start)
        return False

    with pytest.raises(KeyboardInterrupt):
        run_splitting(Range(0, 3_000), advance, 2)
    assert len(done) < 100
