"""What a slicer's settings mean: θ = 0 for amounts, no warnings."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns


@pytest.fixture(scope="module")
def made():
    """A sum of two inputs, means of 0, and a sample."""
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1, name="sum")])
    model.set_weights([np.array([[1.0], [-2.0]]), np.zeros(1)])
    im = nns.InstrumentedModel(model)
    x = np.array([[1.0, 0.5], [-1.0, -0.5]], np.float32)
    return im, nns.Profile.from_data(im, x, progress=False), np.array([[2.0, -1.0]], np.float32)


def test_a_slice_that_is_not_empty_causes_no_warning(made):
    im, profile, x = made
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The slice is empty")
        assert slicer.slice(x, [0]).synapses["sum"].ravel().tolist() == [1, 1]
        slicer.slice_each(x, [0])
    with pytest.warns(UserWarning, match="The slice is empty"):
        slicer.slice(np.zeros((1, 2), np.float32), [0])


def test_zero_may_be_named_where_it_is_the_default(made):
    im, profile, x = made
    slicer = nns.Slicer(im, profile, 0, contribution="amount", progress=False)
    assert slicer.theta == 0
    assert slicer.slice(x, [0]).synapses["sum"].ravel().tolist() == [2, 2]
