"""Walking on threads: the same results, at the same time, in their order."""

import threading

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.engine.engines import ThreadEngine
from nnslicer_tf.engine.ray_engine import RayEngine
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.slicing import slicer as slicer_module


@pytest.fixture(params=["activation", "channel"])
def slicers(request, im, profile, monkeypatch):
    """Slicers on one thread, and on three."""
    monkeypatch.setattr(slicer_module, "LARGEST_BATCH", 8)
    monkeypatch.setattr(
        slicer_module,
        "make_engine",
        lambda workers, address: ThreadEngine(3) if workers is None else ThreadEngine(),
    )
    one = nns.Slicer(im, profile, 0.3, request.param, workers=0, progress=False)
    three = nns.Slicer(im, profile, 0.3, request.param, workers=None, progress=False)
    return one, three


@pytest.mark.parametrize("samples", [1, 2, 8, 21])
def test_threads_change_nothing(slicers, x, samples):
    one, three = slicers
    assert three.slice(x[:samples]) == one.slice(x[:samples])
    each, expected = three.slice_each(x[:samples]), one.slice_each(x[:samples])
    np.testing.assert_array_equal(each.matrix.toarray(), expected.matrix.toarray())
    np.testing.assert_array_equal(each.predicted, expected.predicted)


class Together:
    """A job that ends only when two of its parts run at once."""

    def __init__(self):
        self._both = threading.Barrier(2, timeout=20)

    def __call__(self, item):
        self._both.wait()
        return [value + 1 for value in item]

    def split(self, item, parts):
        assert parts == 2
        return [item[:1], item[1:]]

    def join(self, results):
        return [value for result in results for value in result]


def test_the_parts_of_a_batch_run_at_once():
    found = list(ThreadEngine(2).map(Together(), enumerate([[1, 2, 3], [4, 5]])))
    assert found == [(0, [2, 3, 4]), (1, [5, 6])]


class Sizes:
    """A job that notes how many samples its parts have."""

    def __init__(self, job):
        self._job = job
        self.sizes = []

    def __call__(self, part):
        self.sizes.append(len(next(iter(part.values()))))
        return self._job(part)

    def __getattr__(self, name):
        return getattr(self._job, name)


@pytest.mark.parametrize(("threads", "sizes"), [(3, [2, 2, 3]), (9, [1] * 7), (1, [7])])
def test_a_batch_is_split_into_parts_of_samples(im, profile, x, monkeypatch, threads, sizes):
    jobs = []

    class Engine(ThreadEngine):
        def map(self, job, items):
            jobs.append(Sizes(job))
            return super().map(jobs[-1], items)

    monkeypatch.setattr(slicer_module, "make_engine", lambda *_: Engine(threads))
    nns.Slicer(im, profile, progress=False).slice(x[:7])
    assert sorted(jobs[0].sizes) == sizes


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:port"])
def test_a_cluster_that_does_not_answer_is_named(address):
    with pytest.raises(InvalidArgumentError, match=f"No Ray cluster is available at .*{address}"):
        RayEngine(2, address)
