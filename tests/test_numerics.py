"""Numbers that many analyses compute, against SciPy and definitions."""

import numpy as np
import scipy.special

from nnslicer_tf import _numerics


def test_softmax_and_sigmoid_equal_scipys():
    scores = np.random.default_rng(0).normal(scale=300, size=(20, 5))
    np.testing.assert_allclose(
        _numerics.softmax(scores), scipy.special.softmax(scores, axis=-1), rtol=1e-12
    )
    np.testing.assert_allclose(
        _numerics.sigmoid(scores), scipy.special.expit(scores), rtol=1e-9, atol=1e-16
    )


def test_the_margin_is_the_best_other_score_minus_the_labels():
    scores = np.random.default_rng(0).normal(size=(20, 5))
    labels = np.random.default_rng(1).integers(0, 5, 20)
    expected = [max(np.delete(s, c)) - s[c] for s, c in zip(scores, labels, strict=True)]
    np.testing.assert_allclose(_numerics.runner_up_margin(scores, labels), expected)
    assert _numerics.accuracy([0, 1, 1, 1], [0, 1, 0, 1]) == 0.75
