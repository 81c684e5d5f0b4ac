"""The experiments' hypotheses of colours."""

import numpy as np
import pytest

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.deepbase.units import hue


def test_a_red_pixel_is_half_against_green_and_all_against_cyan():
    x = np.zeros((1, 6, 6, 3), np.float32)
    x[:, :, 3:, 0] = 1  # the right half is red
    red, green, cyan = (hue(angle)(x)[0, 0] for angle in (0, 120, 180))
    np.testing.assert_allclose(red, [0, 0, 0, 1, 1, 1], atol=1e-6)
    np.testing.assert_allclose(green, -red / 2, atol=1e-6)
    np.testing.assert_allclose(cyan, -red, atol=1e-6)
    with pytest.raises(InvalidArgumentError, match="RGB"):
        hue(0)(x[..., :1])
