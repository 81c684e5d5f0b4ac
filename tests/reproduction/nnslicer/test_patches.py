"""Contributions over patches and heads: against sums by hand."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from reproduction.nnslicer.drawing import of_heads, over_pixels
from reproduction.zoo.models import zoo


@pytest.fixture(scope="module")
def sliced():
    keras.utils.set_random_seed(0)
    im = nns.InstrumentedModel(zoo.build("vit"))
    x = np.random.default_rng(0).random((3, 32, 32, 3), np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    return im, nns.Slicer(im, profile, 0.0, progress=False).slice(x[:1], outputs=[4])


def test_all_pixels_of_a_patch_have_its_contributions(sliced):
    im, one = sliced
    drawn = over_pixels(one, im, (32, 32, 3))
    by_patch = one.neurons["sequence"].sum(axis=1)
    assert drawn.shape == (32, 32) and drawn.any()
    for patch in (0, 9, 63):
        row, column = divmod(patch, 8)
        square = drawn[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        assert (square == by_patch[patch]).all()


def test_heads_of_all_blocks(sliced):
    im, one = sliced
    heads = of_heads(one, im)
    assert heads.shape == (4, 4) and heads.any()
    context = one.neurons["block3_attention/context"]  # positions, heads, features
    assert heads[2].tolist() == [context[:, head].sum() for head in range(4)]
