"""The zoo's models, and the accuracy of committed weights."""

import re

import numpy as np
import pytest

from nnslicer_tf import datasets, zoo
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError


def test_a_model_built_twice_has_the_same_names():
    first, second = zoo.build("resnet20"), zoo.build("resnet20")
    assert [x.name for x in first.layers] == [x.name for x in second.layers]


def test_other_shapes_and_classes():
    model = zoo.build("lenet5", (32, 32, 3), 7)
    assert model(np.zeros((2, 32, 32, 3))).shape == (2, 7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zoo.build("resnet_10"), "Did you mean 'resnet10'"),
        (lambda: zoo.models.entry("lenet_5"), "Did you mean 'lenet5'"),
        (lambda: zoo.build("lenet5", (4, 4, 1)), r"'lenet5' cannot be built .*\(4, 4, 1\)"),
        (lambda: zoo.load("resnet20"), r"no trained weights of 'resnet20' .*train\.py"),
        (lambda: zoo.load("mlp", "svhn"), "no trained weights of 'mlp' on 'svhn'; .*'mlp-mnist'"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


def test_damaged_weights_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "mlp-mnist.weights.h5"
    path.write_bytes(zoo.weights_path("mlp", "mnist").read_bytes()[:5000])
    monkeypatch.setattr(zoo, "weights_path", lambda *_: path)
    with pytest.raises(CorruptFileError, match=re.escape(str(path))):
        zoo.load("mlp")


def test_weights_of_another_model_are_refused(monkeypatch):
    path = zoo.weights_path("lenet5", "mnist")
    monkeypatch.setattr(zoo, "weights_path", lambda *_: path)
    with pytest.raises(CorruptFileError, match="does not hold weights of 'mlp'"):
        zoo.load("mlp")


def test_the_digits_model_reads_digits():
    model = zoo.load("digits_cnn", dataset="digits")
    data = datasets.load("digits", "test")
    assert zoo.accuracy(model, data) >= 0.97


@pytest.fixture(scope="module")
def mnist(shared_data):
    return datasets.load("mnist", "test")


@pytest.mark.parametrize("name", ["mlp", "lenet", "lenet4", "lenet5", "simplenet"])
def test_the_mnist_models_read_mnist(mnist, name):
    assert zoo.accuracy(zoo.load(name), mnist) >= 0.985


def test_large_weights_are_those_of_the_checkout(tmp_path, monkeypatch):
    installed, checkout = tmp_path / "site-packages/nnslicer_tf/zoo", tmp_path / "checkout"
    for path in (installed / "weights/small", checkout / "data/weights/x/large"):
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setattr(zoo, "__file__", str(installed / "__init__.py"))
    monkeypatch.delenv("NNSLICER_WEIGHTS", raising=False)
    monkeypatch.chdir(checkout)
    assert zoo.weights_file("small") == installed / "weights/small"
    assert zoo.weights_file("x/large") == checkout / "data/weights/x/large"
    assert zoo.weights_file("missing") == checkout / "data/weights/missing"  # to be written
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NNSLICER_WEIGHTS", str(checkout / "data/weights"))
    assert zoo.weights_file("x/large") == checkout / "data/weights/x/large"
