"""Finished parts of long work: kept, found again, refused when they are of other work."""

import numpy as np
import pytest
import scipy.sparse as sp

from nnslicer_tf.engine import Store
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.slicing._rows import RowsOnDisk

WORK = {"model": "lenet", "theta": 0.3, "shape": (2, 3)}


def store(folder, work=WORK, what="checkpoint", **options):
    return Store(folder, work, what, **options)


@pytest.mark.parametrize("compress", [True, False])
def test_parts_are_found_again(tmp_path, compress):
    first = store(tmp_path / "new" / "work", compress=compress)
    assert first.keys() == [] and "b" not in first
    arrays = {"x": np.arange(6.0).reshape(2, 3), "empty": np.zeros(0, bool)}
    first.save("b", {"samples": 2}, arrays)
    first.save("a", {}, {})
    again = store(tmp_path / "new" / "work")
    assert again.keys() == ["a", "b"] and "b" in again
    header, found = again.load("b")
    assert header["samples"] == 2
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    again.save("b", {"samples": 5}, {})
    assert first.load("b")[0]["samples"] == 5
    again.path("b").unlink()
    assert first.keys() == ["a"]
    with pytest.raises(FileNotFoundError, match="no checkpoint file"):
        first.load("b")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({**WORK, "theta": 0.2}, "theta=0.3; this run has theta=0.2"),
        ({**WORK, "rng": 1}, "rng=None; this run has rng=1"),
        ({"model": "lenet"}, "theta=0.3; this run has theta=None"),
    ],
)
def test_other_work_is_refused(tmp_path, other, message):
    store(tmp_path).save("a", {}, {})
    with pytest.raises(ProfileMismatchError, match=message):
        store(tmp_path, other)
    assert store(tmp_path).keys() == ["a"]


def test_damaged_parts_are_refused(tmp_path):
    kept = store(tmp_path)
    kept.save("a", {}, {"x": np.arange(1000)})
    path = kept.path("a")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CorruptFileError, match=path.name):
        kept.load("a")
    store(tmp_path, what="cache").save("a", {}, {})
    with pytest.raises(CorruptFileError, match="its format is 'nnslicer_tf cache 1'"):
        kept.load("a")


@pytest.mark.parametrize("text", ["{", "[1, 2]"])
def test_a_damaged_identity_is_refused(tmp_path, text):
    store(tmp_path)
    (tmp_path / "identity.json").write_text(text)
    with pytest.raises(CorruptFileError, match=r"identity\.json' is damaged"):
        store(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match="file"):
        store(tmp_path / "file")


@pytest.mark.parametrize("name", ["data", "indices"])
def test_a_folder_in_the_place_of_a_file_of_rows(tmp_path, name):
    (tmp_path / f"synapses.{name}").mkdir()
    rows = RowsOnDisk(tmp_path, "synapses", 3, np.int32)
    rows.append(sp.csr_array(np.eye(3, dtype=np.int32)))
    with pytest.raises(CorruptFileError, match=rf"synapses\.{name}' is a folder"):
        rows.finish()


@pytest.mark.parametrize("name", ["identity.json", "a.npz"])
def test_a_folder_in_the_place_of_a_part(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises((CorruptFileError, InvalidArgumentError), match=f"{name}'"):
        store(tmp_path).load("a")


@pytest.mark.parametrize("key", ["", "a/b", "..", ".hidden", "..\\up"])
def test_keys_that_name_no_file_of_the_folder(tmp_path, key):
    """They were saved, some outside the folder, and not listed."""
    store = Store(tmp_path, {"run": 1}, "work")
    for call in (lambda: store.save(key, {}, {}), lambda: store.load(key), lambda: key in store):
        with pytest.raises(InvalidArgumentError, match="A key must be a plain file name"):
            call()
    assert not store.keys()


@pytest.mark.parametrize("name", ["format", "work"])
def test_names_in_a_header_that_are_its_own(tmp_path, name):
    store = Store(tmp_path, {"run": 1}, "work")
    with pytest.raises(InvalidArgumentError, match=f"its own '{name}'"):
        store.save("part", {name: "mine"}, {})
    assert not store.keys()


def test_arrays_given_as_lists(tmp_path):
    store = Store(tmp_path, {"run": 1}, "work")
    store.save("part", {}, {"values": [1, 2], "number": 3})
    arrays = store.load("part")[1]
    assert arrays["values"].tolist() == [1, 2] and arrays["number"] == 3
