"""Data sets: splits, normalisations, files, and what happens when there is none."""

import socket

import numpy as np
import pytest
from sklearn.datasets import load_digits

from nnslicer_tf import datasets
from nnslicer_tf.errors import (
    CorruptFileError,
    DatasetUnavailableError,
    InvalidArgumentError,
)


def test_digits_are_scikit_learns_divided_into_two_parts():
    images, labels = load_digits(return_X_y=True)
    train = datasets.load("digits", "train", normalise="none")
    test = datasets.load("digits", "test", normalise="none")
    assert (len(train), len(test)) == (1_437, 360)
    assert train.x.shape == (1_437, 8, 8, 1)
    assert (train.x.dtype, train.y.dtype) == (np.float32, np.int64)
    both = np.concatenate([train.x, test.x]).reshape(-1, 64)
    ys = np.concatenate([train.y, test.y])
    assert sorted(map(tuple, np.c_[both, ys])) == sorted(map(tuple, np.c_[images, labels]))


@pytest.mark.parametrize(
    ("split", "index"),
    [
        ("test[:10]", slice(0, 10)),
        ("test[-10:]", slice(350, 360)),
        ("test[25%:75%]", slice(90, 270)),
        ("test[90%:]", slice(324, 360)),
        ("test[5:-5]", slice(5, 355)),
        ("test[:]", slice(0, 360)),
    ],
)
def test_digits_split_syntax(split, index):
    whole = datasets.load("digits", "test")
    part = datasets.load("digits", split)
    assert np.array_equal(part.x, whole.x[index])
    assert np.array_equal(part.y, whole.y[index])


def test_splits_can_be_joined():
    joined = datasets.load("digits", "train[:3]+test[:2]")
    parts = [datasets.load("digits", "train[:3]"), datasets.load("digits", "test[:2]")]
    assert np.array_equal(joined.y, np.concatenate([part.y for part in parts]))


def test_normalisations_of_digits():
    raw = datasets.load("digits", "train", normalise="none").x
    assert raw.max() == 16
    assert np.array_equal(datasets.load("digits", "train").x, raw / 16)
    standard = datasets.load("digits", "train", normalise="standard").x
    expected = (raw - raw.mean(dtype=np.float64)) / raw.std(dtype=np.float64)
    np.testing.assert_allclose(standard, expected, atol=1e-5)
    scale = datasets.normalisation("digits", "standard")
    np.testing.assert_allclose(standard * scale.std + scale.mean, raw, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: datasets.load("digit"), "Unknown data set 'digit'"),
        (lambda: datasets.load("digits", "validation"), "Unknown split 'validation'"),
        (lambda: datasets.load("digits", "test[5:5]"), "is empty"),
        (lambda: datasets.load("digits", "test[5]"), r"Unknown split 'test\[5\]'"),
        (lambda: datasets.load("digits", normalise="mean"), "Unknown normalisation 'mean'"),
        (lambda: datasets.load_data("nothing.npz"), "no file 'nothing.npz'"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


def test_a_spec_has_a_name_and_a_split():
    data = datasets.load_data("digits:test[:7]")
    assert (data.name, data.split, len(data)) == ("digits", "test[:7]", 7)
    assert len(datasets.load_data("digits")) == 360


def test_npz_files_come_back_as_they_were(tmp_path):
    x = np.random.default_rng(0).normal(size=(5, 4, 4, 2)).astype(np.float32)
    y = np.array([0, 3, 1, 2, 0], np.uint8)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    data = datasets.load_data(tmp_path / "data.npz", normalise="standard")
    assert np.array_equal(data.x, x)
    assert np.array_equal(data.y, y)
    assert (data.y.dtype, data.classes, data.normalise) == (np.int64, 4, "none")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 3))}, "has no array y"),
        ({"inputs": np.zeros(1)}, "has no array x and y"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(3, int)}, "each of 2 samples"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2)}, "each of 2 samples"),
        ({"x": np.zeros((2, 3)), "y": np.array([0, -1])}, "0 or more"),
        ({"x": np.zeros(2), "y": np.zeros(2, int)}, "x must be"),
        ({"x": np.array([[{}]]), "y": np.zeros(1, int)}, "not a readable"),  # needs pickle
    ],
)
def test_npz_files_of_other_kinds_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(CorruptFileError, match=message):
        datasets.load_data(tmp_path / "data.npz")


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x,y\n"])
def test_damaged_npz_files_are_refused(tmp_path, damage):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=np.ones((9, 9)), y=np.ones(9, int))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptFileError, match="not a readable"):
        datasets.load_data(path)


def test_a_set_that_is_nowhere_says_what_to_do(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(DatasetUnavailableError, match=r"no route to host.*TFDS_DATA_DIR.*npz"):
        datasets.load("fashion_mnist", "test")


def test_mnist_arrays(shared_data):
    data = datasets.load("mnist", "test[:300]")
    assert (data.x.shape, data.classes) == ((300, 28, 28, 1), 10)
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert data.y[:10].tolist() == [2, 0, 4, 8, 7, 6, 0, 6, 3, 1]


def test_wrong_split_of_a_tfds_set(shared_data):
    with pytest.raises(InvalidArgumentError, match=r"Unknown split 'valid'.*train, test"):
        datasets.load("mnist", "valid")


def test_cifar10_statistics_are_the_published_ones(shared_data):
    scale = datasets.normalisation("cifar10", "standard")
    np.testing.assert_allclose(scale.mean / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)
    np.testing.assert_allclose(scale.std / 255, [0.2470, 0.2435, 0.2616], atol=1e-4)
