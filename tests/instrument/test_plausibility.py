"""Guesses about mistakes warn where they should, and never refuse."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InputRangeWarning, InvalidArgumentError, PlausibilityWarning
from nnslicer_tf.instrument import plausibility

RNG = np.random.default_rng(0)
TABLE = np.stack(
    [RNG.normal(45, 12, 200), RNG.lognormal(10, 0.4, 200), RNG.integers(0, 4, 200)], axis=1
)
STANDARD = (TABLE - TABLE.mean(axis=0)) / TABLE.std(axis=0)


@pytest.fixture(scope="module")
def im():
    keras.utils.set_random_seed(0)
    return nns.InstrumentedModel(keras.Sequential([keras.Input((3,)), layers.Dense(2)]))


@pytest.mark.parametrize(
    ("profiled", "sample", "fits"),
    [
        (TABLE, STANDARD[:1], False),
        (TABLE, STANDARD[3:20], False),
        (STANDARD, TABLE[:1], False),
        (STANDARD, TABLE[3:20], False),
        (TABLE, TABLE[:1], True),
        (TABLE, TABLE[:1] * [1, 0, 1], True),  # no income
        (STANDARD, STANDARD[5:6], True),
        (TABLE / 255, TABLE[:1], False),
        (TABLE, TABLE[:1] / 255, False),
        (TABLE, np.zeros((1, 3)), True),  # an empty one, perhaps on purpose
    ],
)
def test_another_scale_is_said_in_both_directions(im, profiled, sample, fits):
    slicer = nns.Slicer(im, nns.Profile.from_data(im, profiled, progress=False), progress=False)
    if fits:
        slicer.slice(sample, outputs=[0])
    else:
        with pytest.warns(InputRangeWarning, match="Scale inputs as for the profile"):
            slicer.slice(sample, outputs=[0])


def test_a_model_that_is_often_wrong_is_not_refused():
    """Two classes, 49 % right in the alphabetical order, and so 51 % in the other."""
    model = keras.Sequential([keras.Input((2,)), layers.Activation("softmax")])
    y = np.arange(100) % 2
    answers = np.where(np.arange(100) < 49, y, 1 - y)
    x = 5 * np.eye(2, dtype=np.float32)[answers]
    data = Dataset(x, y, "votes", "", "none", 2, ("no", "yes"), alphabetical=True)
    np.testing.assert_array_equal(nns.InstrumentedModel(model).labelled(data)[1], y)


def test_answers():
    predicted = np.zeros((10, 2), int)
    other = predicted + np.array([0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plausibility.warn_of_answers(predicted, np.zeros(10, int), ["first"], "")
        plausibility.warn_of_answers(predicted[:7], np.ones(7, int), ["first"], "")  # too few
    with pytest.warns(PlausibilityWarning, match="second is right on 0% of 10 samples. Scale"):
        plausibility.warn_of_answers(other, predicted[:, 0], ["first", "second"], "Scale.")
    with pytest.warns(PlausibilityWarning, match="agree on 0% of 10 samples"):
        plausibility.warn_of_answers(other, None, [], "")
    with pytest.raises(InvalidArgumentError, match="one class index for each of 10"):
        plausibility.warn_of_answers(predicted, np.zeros(3, int), [], "")


def test_probabilities_for_logits():
    with pytest.warns(PlausibilityWarning, match="look like probabilities"):
        plausibility.check_logits(np.full((4, 2), 0.5))
    plausibility.check_logits(np.array([[0.5, -0.5]]))
    with pytest.raises(InvalidArgumentError, match="must be a classifier with logits"):
        plausibility.check_logits(np.zeros((4, 2, 2)))
