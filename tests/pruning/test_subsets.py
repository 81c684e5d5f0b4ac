"""Accuracies on sets of target classes."""

import numpy as np
import pytest

from nnslicer_tf._numerics import subset_figures


def test_figures_of_a_subset():
    y = np.array([0, 0, 1, 2, 2])
    logits = np.array([[3, 1, 2], [1, 2, 3], [1, 0, 2], [0, 1, 2], [2, 1, 0]], float)
    found = subset_figures(logits, y, [2, 0])
    assert found == {"targets": 0.5, "others": 0.0, "all": 0.4, "among_targets": 0.5}
    assert subset_figures(logits, np.eye(3, dtype=int)[y], [2, 0]) == found
    # Among 0 and 1 alone: 0; 1; then 0, which is wrong.
    assert subset_figures(logits, y, [0, 1])["among_targets"] == pytest.approx(1 / 3)
    assert np.isnan(subset_figures(logits, y, [0, 1, 2])["others"])
