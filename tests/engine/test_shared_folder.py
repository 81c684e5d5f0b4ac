"""Two runs with different work in one new folder: each is right, or refused."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import dflare
from nnslicer_tf._files import atomic_path
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError

from .shared_folder import KINDS, SIDES, Processes, pair_of_threads, searches, slicer, subject


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_of_threads(tmp_path, kind):
    ends = []
    for number in range(5):
        ends += pair_of_threads(kind, tmp_path / str(number))
    assert set(ends) <= {"right", "refused"}, ends
    assert "right" in ends


@pytest.mark.slow  # the processes import TensorFlow
def test_pairs_of_processes(tmp_path):
    processes = Processes()
    for number in range(3):
        for kind in KINDS:
            ends = processes.pair(kind, tmp_path / f"{kind}{number}")
            assert set(ends) <= {"right", "refused"}, (kind, ends)
    processes.close()


def profiles(side, path):
    im, _, x = subject()
    nns.Profile.from_data(im, x[side], progress=False).save(path)
    return lambda: next(iter(nns.Profile.load(path).means.values()))


def slices(side, path):
    slicer(0.3).slice_each(subject()[2][side]).save(path)
    return lambda: nns.SliceSet.load(path).to_array()


def deviations(side, path):
    searches(side, None, save=lambda one: one.save(path))
    return lambda: dflare.DeviationSet.load(path).queries


def suites(side, path):
    searches(side, None, save=lambda one: dflare.export_suite(one, path))
    return lambda: np.load(path / "deviations.npz")["inputs"]


@pytest.mark.parametrize("write", [profiles, slices, deviations, suites])
def test_a_file_that_two_write_is_always_one_of_theirs(tmp_path, write):
    """Of files that two runs replace, a third run reads one or the other, and never a mixture."""
    ends = [write(side, tmp_path / f"{side}.npz")() for side in SIDES]
    assert not np.array_equal(*ends)
    read = write(0, tmp_path / "both.npz")
    with ThreadPoolExecutor(2) as pool:
        writers = [
            pool.submit(lambda side: [write(side, tmp_path / "both.npz") for _ in range(4)], side)
            for side in SIDES
        ]
        while not all(writer.done() for writer in writers):
            value = read()
            assert any(np.array_equal(value, end) for end in ends)
        for writer in writers:
            writer.result()


def test_a_part_of_a_different_run_is_refused(tmp_path):
    """As when somebody copies it, or removes the identity."""
    Store(tmp_path / "a", {"theta": 0.1}, "checkpoint").save("part", {}, {"x": np.arange(3)})
    other = Store(tmp_path / "b", {"theta": 0.2}, "checkpoint")
    (tmp_path / "a/part.npz").rename(other.path("part"))
    with pytest.raises(ProfileMismatchError, match="belongs to a different run"):
        other.load("part")


def test_the_first_of_two_parts_is_kept(tmp_path):
    store = Store(tmp_path, {}, "checkpoint")
    assert store.save("part", {"n": 1}, {}, replace=False)
    assert not store.save("part", {"n": 2}, {}, replace=False)
    assert store.load("part")[0]["n"] == 1
    assert store.save("part", {"n": 3}, {}) and store.load("part")[0]["n"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["identity.json", "part.npz"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_files_have_the_permissions_of_the_user_and_the_umask_is_left_alone(tmp_path, monkeypatch):
    """Setting it, even for an instant, would open the files of other threads to everybody."""
    before = os.umask(0o077)

    def refuse(mask):
        raise AssertionError("the umask of the process was changed")

    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", refuse)
            with atomic_path(tmp_path / "private") as path:
                path.write_text("text")
            Store(tmp_path / "store", {}, "checkpoint").save("part", {}, {})
    finally:
        os.umask(before)
    for path in (tmp_path / "private", *(tmp_path / "store").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    with atomic_path(tmp_path / "shared") as path:
        path.write_text("text")
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o666 & ~before


@pytest.mark.parametrize("stem", ["a" * 240, "ä" * 120, "**", "[a]", "a?b", "x" * 251])
def test_any_name_that_the_system_takes(tmp_path, stem):
    with atomic_path(tmp_path / f"{stem}.npz") as path:
        path.write_bytes(b"1")
    assert [path.name for path in tmp_path.iterdir()] == [f"{stem}.npz"]


@pytest.mark.parametrize("path", ["", 3, None, b"bytes", ["a"], "a\0b", "x" * 300])
def test_what_names_no_file(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError), atomic_path(path):
        pass
    with pytest.raises(InvalidArgumentError):
        Store(path, {}, "checkpoint")
    assert not list(tmp_path.iterdir())
