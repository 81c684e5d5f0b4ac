"""Profiles by predicted class, slices against them, and profiles by channel."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, pruning, zoo
from reproduction.nnslicer.class_profiles import ClassProfiles


@pytest.fixture(scope="module")
def digits():
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    return im, datasets.load("digits", "train[:400]"), datasets.load("digits", "test")


@pytest.fixture(scope="module")
def profiles(digits):
    im, train, _ = digits
    return ClassProfiles.from_data(im, train.x, train.y, progress=False)


def test_each_class_has_the_mean_of_the_samples_that_the_model_is_right_on(digits, profiles):
    im, train, _ = digits
    predicted = im.logits(train.x).argmax(axis=1)
    assert list(profiles) == list(range(10)) and len(profiles) == 10
    right = (predicted == 4) & (train.y == 4)
    assert profiles[4].samples == right.sum()
    values = im.capture(train.x[right], of=["conv2"])["conv2"]
    np.testing.assert_allclose(profiles[4].means["conv2"], values.mean(axis=0), rtol=1e-5)
    unlabelled = ClassProfiles.from_data(im, train.x, progress=False)
    assert [unlabelled[c].samples for c in range(10)] == np.bincount(predicted).tolist()


def test_a_ranker_takes_the_profile_of_each_class(digits, profiles):
    im, train, _ = digits
    right = im.logits(train.x).argmax(axis=1) == train.y
    common = {"relative_to": "sum", "rectify": "pass"}
    ranker = pruning.NNSlicerRanker(
        profile=profiles, theta=0.2, collect="samples", progress=False, **common
    )
    found = ranker.by_class(im, train.x, train.y, [2, 7])
    for c in (2, 7):
        slicer = nns.Slicer(im, profiles[c], 0.2, workers=0, progress=False, **common)
        matrix = slicer.slice_each(train.x[right & (train.y == c)], outputs=[c]).matrix
        expected = np.asarray((matrix != 0).sum(axis=0)).ravel()
        scores = np.concatenate([values.ravel() for values in found[c].values()])
        np.testing.assert_array_equal(scores, expected)


def test_a_profile_by_channel_has_one_mean_for_each_channel(digits):
    im, train, _ = digits
    profile = nns.Profile.from_data(im, train.x, progress=False)
    pooled = profile.per_channel()
    values = im.capture(train.x, of=["conv2", "logits"])
    channels = values["conv2"].mean(axis=(0, 1, 2))
    np.testing.assert_allclose(pooled.means["conv2"][1, 1], channels, rtol=1e-5)
    assert (pooled.means["conv2"] == pooled.means["conv2"][0, 0]).all()
    np.testing.assert_array_equal(pooled.means["logits"], profile.means["logits"])
    pooled.check_model(im)


def test_labels_that_count_from_one_are_refused(digits):
    """Of 10 classes, the last one is 10; before, its samples had been left out silently."""
    im, train, _ = digits
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"in 0 … 9; .*from 1 to 10"):
        ClassProfiles.from_data(im, train.x, train.y + 1, progress=False)
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"in 0 … 9; .*from 1 to 10"):
        pruning.shrink(im, train.x, train.y + 1, classes=(1, 2), progress=False)


def test_unknown_classes_and_ways_to_collect_are_refused(digits, profiles):
    two = ClassProfiles({c: profiles[c] for c in (0, 1)})
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"no profile of class 5; .* 0, 1"):
        two[5]
    assert two[1] is profiles[1] and "2 classes" in repr(two)
    with pytest.raises(nns.errors.InvalidArgumentError, match="way to collect 'sum'"):
        pruning.NNSlicerRanker(collect="sum")
