"""The attributions of the experiments, against closed forms of small models."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.errors import UnsupportedLayerError
from reproduction.decisive.attributions import (
    expected_gradients,
    grad_cam,
    rise,
    smooth_gradients,
)

RNG = np.random.default_rng(0)
X, BASELINE = RNG.normal(size=(2, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def linear():
    """Logits W·x of six features, and W."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, use_bias=False, name="logits")])
    return nns.InstrumentedModel(model), np.asarray(model.get_weights()[0])


def test_of_a_linear_model_they_are_the_weight_times_the_difference(linear):
    im, weights = linear
    expected = weights[:, 1] * (X - BASELINE)
    np.testing.assert_allclose(smooth_gradients(im, X, BASELINE, 1), expected, rtol=1e-4)
    np.testing.assert_allclose(expected_gradients(im, X, BASELINE, 1), expected, rtol=1e-4)
    np.testing.assert_allclose(rise(im, X, BASELINE, 1), expected, atol=0.3)
    with pytest.raises(UnsupportedLayerError, match="convolution"):
        grad_cam(im, X, BASELINE, 0)


def test_expected_gradients_of_several_baselines_are_the_mean_over_them(linear):
    """Of a linear model, those of the mean baseline, up to the choice of the baselines."""
    (im, weights), baselines = linear, RNG.normal(size=(3, 6))
    values = expected_gradients(im, X, np.repeat(baselines[:1], 3, 0), 1)
    np.testing.assert_allclose(values, weights[:, 1] * (X - baselines[0]), rtol=1e-4)
    values = expected_gradients(im, X, baselines, 1)
    np.testing.assert_allclose(values, weights[:, 1] * (X - baselines.mean(axis=0)), atol=0.5)


def test_grad_cam_of_one_channel_is_its_positive_map():
    """One 1×1 convolution, its mean as the logit: the gradient is 1/25 everywhere."""
    inputs = keras.Input((5, 5, 1))
    maps = layers.Conv2D(1, 1, use_bias=False, name="conv")(inputs)
    logits = layers.Dense(2, use_bias=False)(layers.GlobalAveragePooling2D()(maps))
    model = keras.Model(inputs, logits)
    model.set_weights([np.full((1, 1, 1, 1), 2.0), np.array([[3.0, -3.0]])])
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(3).normal(size=(5, 5, 1)).astype(np.float32)
    for target, sign in ((0, 1), (1, -1)):
        values = grad_cam(im, x, np.zeros_like(x), target)
        np.testing.assert_allclose(values, np.maximum(sign * 2 * 3 / 25 * x, 0), rtol=1e-5)
