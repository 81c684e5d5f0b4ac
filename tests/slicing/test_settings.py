"""What a slicer's settings mean: θ = 0 for amounts, the steepness of smooth slices, no warnings."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.slicing import SmoothSlices


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


@pytest.mark.parametrize("steepness", [None, 1.0, 3.0])
def test_gradients_of_smooth_slices_are_those_of_a_tanh(made, steepness):
    """CONTRIB of the first synapse is s(x₀) · s(y), with s' the derivative of tanh(k · / size).

    The size of values is the mean of their absolutes; the default of k is 1.
    """
    import tensorflow as tf

    im, profile, x = made
    slicer = nns.Slicer(im, profile, theta=0, workers=0, progress=False)
    options = {} if steepness is None else {"steepness": steepness}
    smooth, k = SmoothSlices(slicer, [0], ["sum"], **options), steepness or 1.0
    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        contribution = smooth(tensor)["sum"][0, 0, 0]
    assert float(contribution) == 1

    def slope(value, size):
        return k / size * (1 - np.tanh(k * value / size) ** 2)

    y = 4.0  # 2 · 1 − 1 · −2
    expected = slope(y, y) * np.array([1.0, -2.0]) + np.array([slope(2.0, 1.5), 0])
    gradient = tape.gradient(contribution, tensor).numpy()[0]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)
