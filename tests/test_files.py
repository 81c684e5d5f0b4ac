"""Writing files: a failed write never spoils a good file; archives say what they are."""

import json
import os
import socket
import stat

import numpy as np
import pytest

from nnslicer_tf._files import atomic_path, check_writable, read_archive, write_archive
from nnslicer_tf.errors import (
    CorruptFileError,
    InvalidArgumentError,
    MissingFileError,
    NNSlicerError,
)


def read(path, kind="test 1", what="test file"):
    with read_archive(path, kind, what) as file:
        return file.arrays()


def test_a_file_appears_when_it_is_whole(tmp_path):
    target = tmp_path / "new" / "file.txt"
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        assert not target.exists()
        temporary.write_text("whole")
        assert temporary.suffix == ".txt"
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_good_file(tmp_path, error):
    target = tmp_path / "file.txt"
    target.write_text("good")
    with pytest.raises(error), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise error
    assert target.read_text() == "good"
    assert list(tmp_path.iterdir()) == [target]


def test_places_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match="it is a folder"):
        check_writable(tmp_path)
    with pytest.raises(InvalidArgumentError, match="Cannot write to"):
        check_writable(tmp_path / "file" / "below")
    with pytest.raises(InvalidArgumentError), atomic_path(tmp_path):
        pytest.fail("entered")


def test_a_check_leaves_nothing_behind(tmp_path):
    path = check_writable(str(tmp_path / "a" / "b.npz"))
    assert path == tmp_path / "a" / "b.npz"
    assert list(path.parent.iterdir()) == []


def test_archives_come_back(tmp_path):
    path = tmp_path / "a.npz"
    arrays = {"x": np.arange(6).reshape(2, 3), "empty": np.zeros((0, 2), np.float32)}
    write_archive(path, "test 1", {"names": ["ä", "b"]}, arrays)
    with read_archive(path, "test 1", "test file") as file:
        assert file.header["names"] == file.names("names") == ["ä", "b"]
        back = file.arrays()
    assert set(back) == set(arrays)
    for name, value in arrays.items():
        assert np.array_equal(back[name], value)
        assert back[name].dtype == value.dtype


def test_archives_of_another_format_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    write_archive(path, "test 1", {}, {})
    with pytest.raises(CorruptFileError, match="'test 1', expected 'test 2'"):
        read(path, "test 2", "test file")
    assert issubclass(MissingFileError, NNSlicerError) and issubclass(MissingFileError, OSError)
    with pytest.raises(MissingFileError, match=r"no profile file '.*b\.npz'"):
        read(tmp_path / "b.npz", "test 1", "profile")


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.95])
def test_every_truncation_is_noticed(tmp_path, keep):
    path = tmp_path / "a.npz"
    values = np.random.default_rng(0).normal(size=4_000)
    write_archive(path, "test 1", {}, {"x": values})
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(CorruptFileError, match=r"a\.npz' is not a test file"):
        read(path)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_flipped_bytes_are_noticed(tmp_path, place):
    path = tmp_path / "a.npz"
    write_archive(path, "test 1", {}, {"x": np.random.default_rng(0).normal(size=4_000)})
    content = bytearray(path.read_bytes())
    start = int(place * len(content))
    content[start : start + 8] = bytes(255 - b for b in content[start : start + 8])
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="is not a test file"):
        read(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"header": np.array("not JSON")},
        {"x": np.zeros(3)},
        {"header": np.array({"format": "test 1"}, dtype=object)},  # would need pickle
    ],
    ids=["not JSON", "no header", "pickled"],
)
def test_other_npz_files_are_refused(tmp_path, arrays):
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(CorruptFileError, match="is not a test file"):
        read(path)


def test_archives_open_without_pickle(tmp_path):
    path = tmp_path / "a.npz"
    write_archive(path, "test 1", {"k": 1}, {"x": np.ones(2)})
    with np.load(path, allow_pickle=False) as archive:
        assert json.loads(str(archive["header"])) == {"format": "test 1", "k": 1}


def test_what_is_no_file_is_neither_written_nor_replaced(tmp_path):
    places = [tmp_path / "pipe.npz", tmp_path / "socket.npz", tmp_path / "device.npz"]
    os.mkfifo(places[0])
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(places[1]))
    try:
        os.mknod(places[2], stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:  # only root makes devices
        places.pop()
    for place in list(places):
        places.append(place.with_name(f"link to {place.name}"))
        places[-1].symlink_to(place.name)
    places.append(tmp_path / "circle.npz")
    places[-1].symlink_to("circle.npz")
    kinds = [path.lstat() for path in places]
    for path in places:
        with pytest.raises(InvalidArgumentError, match=r"npz': it is a device, a pipe or another"):
            check_writable(path)
        with pytest.raises(InvalidArgumentError, match="Pass a file name"):
            write_archive(path, "test 1", {}, {})
        with pytest.raises(InvalidArgumentError), atomic_path(path, replace=False):
            pytest.fail("entered")
    after = [path.lstat() for path in places]
    assert [(s.st_mode, s.st_ino) for s in after] == [(s.st_mode, s.st_ino) for s in kinds]
    assert sorted(tmp_path.iterdir()) == sorted(places)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_links_stay_and_their_files_are_written(tmp_path, absolute, replace):
    (tmp_path / "store").mkdir()
    target = tmp_path / "store" / "blob"  # with another ending than its links
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.symlink_to(target if absolute else "store/blob")
    second.symlink_to("first.txt")
    with atomic_path(second, replace=replace) as temporary:  # there is no target yet
        assert temporary.suffix == ".txt"  # by which writers choose the format
        assert temporary.parent == target.parent  # perhaps another disk: only there it is atomic
        temporary.write_text("one")
    assert target.read_text() == "one" and not target.is_symlink()
    if not replace:
        with pytest.raises(FileExistsError), atomic_path(first, replace=False) as temporary:
            temporary.write_text("two")
        assert target.read_text() == "one"
    with pytest.raises(KeyError), atomic_path(first) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert first.read_text() == "one"
    with atomic_path(first) as temporary:
        temporary.write_text("whole")
    assert second.read_text() == target.read_text() == "whole"
    assert first.is_symlink() and second.is_symlink()
    assert list(target.parent.iterdir()) == [target]


def test_a_link_into_a_folder_that_does_not_exist(tmp_path):
    (tmp_path / "a.txt").symlink_to("no/file.txt")
    with pytest.raises(InvalidArgumentError, match=r"a\.txt': No such file or directory"):
        check_writable(tmp_path / "a.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with atomic_path(tmp_path / "link" / "new" / "b.txt") as temporary:  # a folder's link
        temporary.write_text("b")
    assert (tmp_path / "folder" / "new" / "b.txt").read_text() == "b"
    with pytest.raises(InvalidArgumentError, match="it is a folder"):
        check_writable(tmp_path / "link")
