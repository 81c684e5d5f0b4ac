import signal
import threading
import time

import pytest

from nnslicer_tf.exactline._workers import run_splitting


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_piece_is_done_once(workers):
    done, threads = [], set()

    def finish(piece, waiting):
        start, stop = piece
        while stop - start > 3:
            middle = (start + stop) // 2
            waiting.append((middle, stop))
            stop = middle
        threads.add(threading.get_ident())
        done.extend(range(start, stop))

    run_splitting((0, 1_000), finish, workers)
    assert sorted(done) == list(range(1_000))
    assert len(threads) <= workers + 1


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_ends_the_work(workers):
    def finish(piece, waiting):
        if piece == 20:
            raise RuntimeError("piece 20")
        waiting.append(piece + 1)

    with pytest.raises(RuntimeError, match="piece 20"):
        run_splitting(0, finish, workers)


@pytest.fixture
def interruptible():
    """Ctrl-C raises, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_leaves_what_is_waiting(interruptible):
    done = []

    def finish(piece, waiting):
        if piece == 0:
            waiting.extend(range(1, 300))
            return
        if piece == 280:  # the last are taken first
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.02)
        done.append(piece)

    with pytest.raises(KeyboardInterrupt):
        run_splitting(0, finish, 2)
    assert len(done) < 100
