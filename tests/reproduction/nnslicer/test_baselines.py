"""The detectors that NNSlicer is compared with: on FGSM, their files, their errors."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf.detection import SliceDetector, evaluate
from nnslicer_tf.detection.attacks import MNIST_ATTACKS, generate
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.nnslicer.baselines import EffectivePath, FeatureMap, FlagEverything


@pytest.fixture(scope="module")
def im():
    return nns.InstrumentedModel(zoo.load("digits_cnn"))


@pytest.fixture(scope="module")
def normal():
    return datasets.load("digits", "train").x


@pytest.fixture(scope="module")
def fgsm(im):
    """Test images that FGSM turned, and what it made of them."""
    data = datasets.load("digits", "test")
    made = generate(im.model, MNIST_ATTACKS["FGSM_4"], data.x, data.y, progress=False)
    return data.x[made.success], made.x[made.success]


@pytest.mark.parametrize(
    ("kind", "options", "at_least"),
    [
        (FeatureMap, {"preset": "paper"}, 0.6),
        (FeatureMap, {"preset": "margin"}, 0.8),
        (EffectivePath, {"preset": "paper", "progress": False}, 0.5),
        (EffectivePath, {"preset": "margin", "progress": False}, 0.7),
    ],
)
def test_detection_of_fgsm(im, normal, fgsm, tmp_path, kind, options, at_least):
    detector = kind(im, **options).fit(normal)
    assert evaluate(detector, {"FGSM_4": fgsm}).iloc[0]["auroc"] > at_least
    detector.save(tmp_path / "baseline.npz")
    loaded = kind.load(tmp_path / "baseline.npz", im)
    for again in (loaded, pickle.loads(pickle.dumps(detector)), copy.deepcopy(detector)):
        np.testing.assert_allclose(
            again.decision_function(fgsm[1][:50]), detector.decision_function(fgsm[1][:50])
        )
    with pytest.raises(InvalidArgumentError, match=rf"{kind.__name__}\.load"):
        SliceDetector.load(tmp_path / "baseline.npz", im)


def test_a_file_of_the_first_version_loads(im, normal, tmp_path):
    fresh = FeatureMap(im, "margin", max_features=100).fit(normal[:700])
    saved = Path(__file__).parent / "saved" / "feature_map.npz"
    with read_archive(saved, "nnslicer_tf detector 1", "detector") as file:
        header, arrays = file.header, file.arrays()
    # As of a model whose last bits are this machine's.
    header["identity"], kind = fresh.identity(), header.pop("format")
    write_archive(tmp_path / "feature_map.npz", kind, header, arrays)
    loaded = FeatureMap.load(tmp_path / "feature_map.npz", im)
    assert loaded.get_params() == fresh.get_params()
    x = normal[700:900]
    np.testing.assert_allclose(loaded.score_samples(x), fresh.score_samples(x), atol=1e-3)


def test_flagging_everything_has_an_f1_of_two_thirds(im, normal, fgsm):
    row = evaluate(FlagEverything(im).fit(normal), {"FGSM_4": fgsm}).iloc[0]
    assert (row["precision"], row["recall"], row["auroc"]) == (0.5, 1.0, 0.5)
    assert row["f1"] == pytest.approx(2 / 3)


def test_bad_parameters(im, normal):
    with pytest.raises(InvalidArgumentError, match="Did you mean 'paper'"):
        EffectivePath(im, "papre").fit(normal)
    with pytest.raises(InvalidArgumentError, match=r"theta must be in \(0, 1\]"):
        EffectivePath(im, theta=1.5).fit(normal)
    with pytest.raises(InvalidArgumentError, match="max_features"):
        FeatureMap(im, max_features=0).fit(normal)
