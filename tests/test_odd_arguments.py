"""Arguments and files that no analysis can use end in an error of the library, not in a raw one."""

import os
import zipfile

import keras
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import nnslicer_tf as nns
from nnslicer_tf import datasets, dflare, pruning
from nnslicer_tf._checks import check_count, check_name, check_number
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, NNSlicerError
from nnslicer_tf.exactline import acas
from nnslicer_tf.instrument import load_model
from nnslicer_tf.report import save_figure

ODD = (np.array(["a", "b"]), np.array([1, 2]), None, 3.5, ["a"], {"a": 1}, b"a", True, object())


@pytest.fixture(scope="module")
def im():
    return nns.InstrumentedModel(
        keras.Sequential([keras.Input((3,), name="rows"), keras.layers.Dense(2)])
    )


@pytest.mark.parametrize("value", ODD, ids=lambda v: type(v).__name__)
def test_options_of_any_type(value):
    with pytest.raises(InvalidArgumentError, match="Unknown colour"):
        check_name("colour", value, ("a", "b"))
    if not isinstance(value, float):
        with pytest.raises(InvalidArgumentError, match="workers"):
            check_count("workers", value)
        with pytest.raises(InvalidArgumentError, match="theta"):
            check_number("theta", value, "[0, 1]")


PATHS = ("", 3, None, b"x", ["x"], "x" * 300, "a\0b")
LOADERS = {
    "data": datasets.load_data,
    "model": load_model,
    "profile": nns.Profile.load,
    "slice": nns.Slice.load,
    "slice set": nns.SliceSet.load,
    "deviations": dflare.DeviationSet.load,
    "network": acas.load_nnet,
    "figure": lambda path: save_figure(Figure(), path),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("path", PATHS, ids=lambda p: repr(p)[:8])
def test_paths_of_any_type(tmp_path, monkeypatch, loader, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NNSlicerError):
        LOADERS[loader](path)
    assert not list(tmp_path.iterdir())


def test_dicts_for_one_input(im):
    x = np.ones((2, 3), np.float32)
    for key in ("rows", "x", "Features"):
        np.testing.assert_array_equal(im.check({key: x}), x)
    for key in ("row", "label", 7):
        with pytest.raises(InvalidArgumentError, match=r"one input, 'rows'. Received the key"):
            im.check({key: x})


def test_scores_that_are_none(im):
    with pytest.raises(InvalidArgumentError, match="scores must map the names of kernels"):
        pruning.prune(im.model, scores=None, ratio=0.5)


def test_files_of_figures(tmp_path):
    for name in ("a.txt", "a", "a.keras"):
        with pytest.raises(InvalidArgumentError, match="Figures are written as"):
            save_figure(Figure(), tmp_path / name)
    for name in ("a.pdf", "a.PNG", "a.svg"):
        save_figure(Figure(), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 100


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a disk that is full")
@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_a_full_disk(tmp_path, monkeypatch, ending):
    def full(self, data):
        with open("/dev/full", "wb", buffering=0) as file:
            return file.write(data)

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(InvalidArgumentError, match="No space left"):
        save_figure(Figure(), tmp_path / f"a.{ending}")
    assert not list(tmp_path.iterdir())


def claim(shape, dtype="<f4"):
    """The header of an array of this shape, followed by 10 bytes."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (117 - len(text)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(10)


@pytest.mark.parametrize("shape", [(10**6, 10**6), (10**12, 3), (2**62, 2**62), (5, 3)])
def test_claims_of_size(tmp_path, shape):
    (tmp_path / "a.npy").write_bytes(claim(shape))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", claim(shape))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(CorruptFileError, match=name):
            datasets.load_data(tmp_path / name, labels=False)


def test_a_picture_of_too_many_pixels(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((30, 30), np.uint8)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # 400 million are refused as a bomb
    with pytest.raises(CorruptFileError, match="not a readable image"):
        datasets.load_data(tmp_path / "a.png", labels=False)


@pytest.mark.parametrize("pair", ["12", [1], [1, "2"], [2, 1], 3, [1, 2, 3], [True, 2], {"a": 1}])
def test_ranges_in_profiles(im, tmp_path, pair):
    profile = nns.Profile.from_data(im, np.ones((2, 3)), progress=False)
    profile.input_range = pair
    profile.save(tmp_path / "p.npz")
    with pytest.raises(CorruptFileError, match="it has the range"):
        nns.Profile.load(tmp_path / "p.npz")
