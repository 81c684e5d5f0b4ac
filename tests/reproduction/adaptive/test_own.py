"""A detector in a file, of the package or of a class of one's own, is challenged by a command."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection import LogitMargin, SliceDetector
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.adaptive import challenge
from reproduction.adaptive.own import challenge_own
from reproduction.adaptive.settings import OwnSettings

FEW = {"norms": "linf", "attacks": "selective", "steps": 10, "queries": 10, "rounds": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, its profile, and two fitted detectors, in a folder."""
    folder, normal = tmp_path_factory.mktemp("own"), datasets.load("digits", "train").x
    im = nns.InstrumentedModel(zoo.load("digits_cnn"), bounds=(0, 1))
    im.model.save(folder / "model.keras")
    profile = nns.Profile.from_data(im, normal, progress=False)
    profile.save(folder / "profile.npz")
    LogitMargin(im).fit(normal).save(folder / "margin.npz")
    slicer = nns.Slicer(im, profile, 0.0, progress=False)
    SliceDetector(slicer, max_synapses=64).fit(normal).save(folder / "slices.npz")
    return folder


def settings(folder, detector, **changes):
    paths = {"model": folder / "model.keras", "detector": folder / detector}
    return OwnSettings(
        **paths, data="digits:test[:6]", normal="digits:train[:200]", **FEW | changes
    )


def test_a_file_is_challenged_as_by_hand(files, tmp_path):
    kind = "nnslicer_tf.detection:LogitMargin"
    found = challenge_own(settings(files, "margin.npz", kind=kind, work=tmp_path))
    im = nns.InstrumentedModel(zoo.load("digits_cnn"), bounds=(0, 1))
    data, normal = datasets.load("digits", "test[:6]"), datasets.load("digits", "train[:200]").x
    few = {**FEW, "norms": ["linf"], "attacks": ["selective"], "progress": False}
    detector = LogitMargin.load(files / "margin.npz", im)
    expected = challenge(detector, im, data.x, data.y, normal=normal, **few).images()
    smallest = found.table("margin-images")["model and detector"]
    np.testing.assert_allclose(smallest, expected["model and detector"], rtol=1e-4)
    assert list((tmp_path / "margin").glob("*.npz")) and found.write(tmp_path / "results")


def test_slices_need_their_profile(files, tmp_path):
    with pytest.raises(InvalidArgumentError, match="needs --profile"):
        challenge_own(settings(files, "slices.npz", work=tmp_path))
    profile = files / "profile.npz"
    found = challenge_own(settings(files, "slices.npz", profile=profile, work=tmp_path))
    assert found.table("slices-checks")["check"].str.contains("surrogate").any()
    with pytest.raises(InvalidArgumentError, match="must be MODULE:CLASS"):
        challenge_own(settings(files, "slices.npz", kind="nowhere:Detector", work=tmp_path))
