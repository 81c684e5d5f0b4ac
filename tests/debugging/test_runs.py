"""Samples that fail and pass."""

import numpy as np
import pytest

from nnslicer_tf.debugging import Runs, suspicious
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError


def test_samples_are_divided_by_what_the_model_says(im, data, runs):
    x, y = data
    right = im.logits(x).argmax(axis=1) == y
    np.testing.assert_array_equal(runs.passing.x, x[right])
    np.testing.assert_array_equal(runs.failing.right, y[~right])
    assert (runs.failing.predicted != runs.failing.right).all()
    few = runs.sampled(4, rng=0)
    assert (len(few.failing), len(few.passing)) == (4, 4)
    assert all((runs.failing.x == x).all(axis=(1, 2, 3)).any() for x in few.failing.x)
    for most in (0, -1, None):
        with pytest.raises(InvalidArgumentError, match="most must be a positive integer"):
            runs.sampled(most)


def test_samples_that_do_not_fail_or_pass(im, pairs):
    failing, passing = pairs
    with pytest.raises(InvalidArgumentError, match=r"answers .* failing samples correctly"):
        suspicious(im, passing, passing)
    with pytest.raises(InvalidArgumentError, match=r"answers .* passing samples wrongly"):
        suspicious(im, failing, failing)
    with pytest.raises(InvalidArgumentError, match=r"all \d+ samples correctly"):
        Runs.split(im, *passing)
    with pytest.raises(InvalidArgumentError, match="no failing samples"):
        suspicious(im, (failing[0][:0], failing[1][:0]), passing)
    with pytest.raises(InvalidArgumentError, match="must be a pair"):
        suspicious(im, failing[0][0], passing)
    with pytest.raises(InputShapeError):
        suspicious(im, (failing[0][:, :3], failing[1]), passing)
