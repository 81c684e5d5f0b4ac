"""A plain installation: errors name the packages that it leaves out, the rest works."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection import attacks
from nnslicer_tf.errors import DatasetUnavailableError, MissingPackageError


@pytest.fixture
def plain(monkeypatch):
    """An installation without extras."""
    monkeypatch.setattr("nnslicer_tf._environment.find_spec", lambda package: None)


@pytest.fixture(scope="module")
def slicers():
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    x = datasets.load("digits", "test[:20]").x
    profile = nns.Profile.from_data(im, x, progress=False)

    def with_workers(workers):
        return nns.Slicer(im, profile, 0.3, workers=workers, progress=False)

    return with_workers, x


def test_slicing_stays_with_threads(plain, slicers, monkeypatch):
    monkeypatch.setattr("nnslicer_tf.engine.engines.PATIENCE_SECONDS", 0.0)
    with_workers, x = slicers
    found = with_workers(None).slice_each(x, outputs="predicted")
    expected = with_workers(0).slice_each(x, outputs="predicted")
    assert np.array_equal(found.matrix.toarray(), expected.matrix.toarray())


def test_workers_need_ray(plain, slicers):
    with_workers, x = slicers
    with pytest.raises(MissingPackageError, match=r'pip install "nnslicer_tf\[ray\]"'):
        with_workers(2).slice(x)


def test_attacks_need_foolbox(plain):
    with pytest.raises(MissingPackageError, match=r'pip install "nnslicer_tf\[foolbox\]"'):
        attacks.ATTACKS["FGSM_8"]()


def test_public_data_need_tensorflow_datasets(plain):
    with pytest.raises(DatasetUnavailableError, match=r'pip install "nnslicer_tf\[tfds\]"'):
        datasets.load("mnist", "test[:1]")
    assert len(datasets.load("digits", "test[:3]")) == 3


def test_messages_are_one_line(plain, slicers):
    with_workers, x = slicers
    with pytest.raises(MissingPackageError) as raised:
        with_workers(2).slice(x)
    assert "\n" not in str(raised.value)
