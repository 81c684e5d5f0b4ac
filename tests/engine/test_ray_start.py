"""Ray that does not start, does not answer, or is interrupted."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from nnslicer_tf.engine import engines, ray_engine
from nnslicer_tf.errors import InvalidArgumentError

ray = pytest.importorskip("ray")


class Square(engines.Job):
    def __call__(self, item):
        return item * item

    def split(self, item, parts):
        return [item]


def squares(engine):
    return sorted(engine.map(Square(), enumerate(range(7))))


EXPECTED = [(i, i * i) for i in range(7)]


@contextmanager
def listening(answer):
    """Yield the address of a program that says something else than Ray does."""
    server = socket.create_server(("127.0.0.1", 0))
    connections = []

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection)
            if answer is not None:
                connection.recv(1000)
                connection.sendall(answer)
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    "answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"]
)
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_another_program_at_the_address_is_no_cluster(monkeypatch, answer, scheme):
    """Ray would wait for it for ever, and could not be interrupted."""
    monkeypatch.setattr(ray_engine, "CONNECT_SECONDS", 0.3)
    begin = time.monotonic()
    with listening(answer) as address, pytest.raises(InvalidArgumentError, match=address):
        ray_engine.RayEngine(2, scheme + address)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("make", [ray_engine.RayEngine, engines.AdaptiveEngine])
@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_without_ray_the_work_runs_on_threads(monkeypatch, make, how):
    """Started by a number of workers, or because the work takes long."""
    over = threading.Event()

    def init(**options):
        if how == "hangs":
            over.wait(20)
        raise OSError("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray_engine, "START_SECONDS", 0.3)
    monkeypatch.setattr(engines, "PATIENCE_SECONDS", 0.0)
    message = "timed out during startup" if how == "fails" else "no answer within 0.3 s"
    with pytest.warns(UserWarning, match=f"Ray could not be used .*{message}.*threads"):
        assert squares(make(2)) == EXPECTED
    over.set()


def test_a_cluster_that_does_not_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(ray, "init", lambda **options: time.sleep(1))
    monkeypatch.setattr(ray_engine, "START_SECONDS", 0.2)
    with pytest.raises(InvalidArgumentError, match=r"'auto' \(no answer within 0\.2 s\)"):
        squares(ray_engine.RayEngine(2, "auto"))


INTERRUPTED = """
import signal, sys, time, ray
signal.pthread_sigmask(signal.SIG_BLOCK, [])
ray.init = lambda **options: time.sleep(60)  # as Ray, in a call that Ctrl-C does not end
from nnslicer_tf.engine.ray_engine import RayEngine
print("starting", flush=True)
try:
    list(RayEngine(2).map(abs, enumerate(range(3))))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow  # on a loaded machine, the signal may come while modules are imported
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_starting_can_be_interrupted():
    run = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "starting\n"
    time.sleep(0.5)
    begin = time.monotonic()
    os.kill(run.pid, signal.SIGINT)
    assert run.stdout.readline() == "interrupted\n"
    assert run.wait(20) == 0
    run.stdout.close()
    assert time.monotonic() - begin < 10


def test_threads_share_the_ray_that_one_of_them_starts():
    """The second failed with Ray's own errors, and ended the first one's cluster."""
    found = {}

    def run(place):
        time.sleep(place)
        found[place] = squares(ray_engine.RayEngine(2))

    threads = [threading.Thread(target=run, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: EXPECTED, 1: EXPECTED}
    assert not ray.is_initialized()


@pytest.mark.parametrize("own", [False, True])
def test_work_inside_other_work_that_holds_all_cores(monkeypatch, own):
    """It waited for a minute, and was told to omit an address that was not given."""
    if own:
        ray.init(num_cpus=2, object_store_memory=10**8, include_dashboard=False)
    try:
        outer = ray_engine.RayEngine(2).map(Square(), enumerate(range(7)))
        first = next(outer)
        monkeypatch.setattr(ray_engine, "START_SECONDS", 3)
        with pytest.warns(UserWarning, match=r"Ray could not be used \(no core was free"):
            assert squares(ray_engine.RayEngine(2)) == EXPECTED
        assert sorted([first, *outer]) == EXPECTED  # its workers live on
        assert ray.is_initialized() == own
    finally:
        ray.shutdown()


def test_a_ray_that_the_user_starts_meanwhile_is_left_alone():
    outer = ray_engine.RayEngine(2).map(Square(), enumerate(range(7)))
    next(outer)
    ray.shutdown()
    ray.init(num_cpus=2, object_store_memory=10**8, include_dashboard=False)
    try:
        assert squares(ray_engine.RayEngine(2)) == EXPECTED
        outer.close()
        assert ray.is_initialized()
    finally:
        ray.shutdown()
