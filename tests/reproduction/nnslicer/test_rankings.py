"""Rankings of synapses by class that are kept on disk."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, pruning, zoo
from reproduction.nnslicer.targets import ABLATED, RANKINGS, ClassScores, kept_rankings


def test_rankings_are_made_once(tmp_path):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    train = datasets.load("digits", "train[:300]")
    found = kept_rankings(im, train, 2, 50, tmp_path, RANKINGS)
    x = np.concatenate([train.x[train.y == c][:2] for c in range(10)])
    y = np.repeat(np.arange(10), 2)
    profile = nns.Profile.from_data(im, train.x[:50])
    expected = pruning.NNSlicerRanker(profile=profile).by_class(im, x, y)
    assert list(found["slices"]) == list(expected) == list(range(10))
    for name, scores in expected[3].items():
        both = found["slices"].total([3, 5])[name]
        np.testing.assert_array_equal(both, scores + expected[5][name])
    kernels = {kind: scores.total([3])["conv2"] for kind, scores in found.items()}
    for kind in ("magnitudes", "paths"):
        assert np.any(kernels[kind] != kernels["slices"])
    others = datasets.load("digits", "train[300:400]")  # not looked at: the files are there
    again = kept_rankings(im, others, 2, 50, tmp_path, RANKINGS)
    for name, scores in expected[3].items():
        np.testing.assert_array_equal(again["slices"].total([3])[name], scores)


def test_ablated_rankings_change_one_thing_of_the_papers(tmp_path):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    train = datasets.load("digits", "train[:300]")
    found = kept_rankings(im, train, 2, 50, tmp_path, ABLATED)
    profile = nns.Profile.load(tmp_path / "profile.npz")
    threes = train.x[train.y == 3][:2]
    for name, theta, granularity in (
        ("slices", 0.3, "activation"),
        ("theta0", 0.0, "activation"),
        ("theta1", 1.0, "activation"),
        ("channels", 0.3, "channel"),
    ):
        slicer = nns.Slicer(im, profile, theta, granularity, workers=0)
        expected = slicer.slice(threes, outputs=[3]).synapses["conv2"]
        np.testing.assert_array_equal(found[name].total([3])["conv2"], expected)
    assert set(found) == {*ABLATED} >= {"magnitudes", "all-samples"}


def test_no_sum_over_unknown_classes_or_files(tmp_path):
    scores = ClassScores({0: {"a": np.ones(2)}})
    with pytest.raises(nns.errors.InvalidArgumentError, match="empty"):
        scores.total([])
    with pytest.raises(nns.errors.InvalidArgumentError, match="no scores for class 4"):
        scores.total([0, 4])
    (tmp_path / "scores.npz").write_bytes(b"nothing")
    with pytest.raises(nns.errors.CorruptFileError):
        ClassScores.load(tmp_path / "scores.npz")
