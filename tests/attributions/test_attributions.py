"""Attributions and deletion curves against closed forms of linear models."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.attributions import ATTRIBUTIONS, metrics
from nnslicer_tf.errors import (
    InputShapeError,
    InvalidArgumentError,
    NonFiniteActivationError,
)

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(6, 3)).astype(np.float32)
X, BASELINE = RNG.normal(size=(2, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def linear():
    """Logits W·x, of six features."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, use_bias=False, name="logits")])
    model.set_weights([WEIGHTS])
    return nns.InstrumentedModel(model)


@pytest.mark.parametrize(
    "name",
    [
        "gradient × input",
        "integrated gradients",
        "integrated gradients, 50 samples",
        "DeepLIFT",
        "occlusion",
    ],
)
def test_of_a_linear_model_is_the_weight_times_the_difference(linear, name):
    values = ATTRIBUTIONS[name](linear, X, BASELINE, 1)
    np.testing.assert_allclose(values, WEIGHTS[:, 1] * (X - BASELINE), rtol=1e-4, atol=1e-5)


def test_integrated_gradients_sum_to_the_change_of_the_output():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    im = nns.InstrumentedModel(model)
    x, baseline = np.random.default_rng(2).normal(size=(2, 6, 6, 1)).astype(np.float32)
    values = ATTRIBUTIONS["integrated gradients"](im, x, baseline, 2)
    expected = np.subtract(*im.logits(np.stack([x, baseline]))[:, 2])
    np.testing.assert_allclose(values.sum(), expected, rtol=1e-4)


def test_windows_of_occlusion_hide_every_pixel():
    """The logit counts the pixels: every window of 2·3 by 2·3 inside takes 36 of them away."""
    model = keras.Sequential(
        [keras.Input((42, 42, 1)), layers.Flatten(), layers.Dense(2, use_bias=False)]
    )
    model.set_weights([np.ones((42 * 42, 2))])
    im = nns.InstrumentedModel(model)
    values = ATTRIBUTIONS["occlusion"](im, np.ones((42, 42, 1)), np.zeros((42, 42, 1)), 0)
    assert values.shape == (42, 42, 1)
    np.testing.assert_allclose(values[6:-6, 6:-6], 36, rtol=1e-4)
    assert values.min() > 0


def test_the_deletion_curve_of_the_best_order(linear):
    values = WEIGHTS[:, 1] * (X - BASELINE)
    curve = metrics.deletion(linear, X, BASELINE, 1, values, steps=6)
    order = np.argsort(-values)
    for count in range(7):
        x = X.copy()
        x[order[:count]] = BASELINE[order[:count]]
        odds = np.exp(x @ WEIGHTS)
        assert curve.answers[count] == pytest.approx(odds[1] / odds.sum(), rel=1e-4)
    assert curve.area == pytest.approx(np.trapezoid(curve.answers, np.linspace(0, 1, 7)))
    worst = metrics.deletion(linear, X, BASELINE, 1, -values, steps=6)
    assert curve.area < worst.area


@pytest.mark.parametrize("target", [-1, 3, 1.0, True])
def test_targets_that_do_not_exist_are_refused(linear, target):
    for name in ATTRIBUTIONS:
        with pytest.raises(InvalidArgumentError, match=f"Received: {target}"):
            ATTRIBUTIONS[name](linear, X, BASELINE, target)
    with pytest.raises(InvalidArgumentError, match=f"one of 3 logits. Received: {target}"):
        metrics.deletion(linear, X, BASELINE, target, X)


def test_what_a_deletion_curve_needs(linear):
    with pytest.raises(InvalidArgumentError, match=r"\(6,\). Received: NaN in places"):
        metrics.deletion(linear, X, BASELINE, 0, np.full(6, np.nan))
    with pytest.raises(InvalidArgumentError, match=r"Received: float\d+ of shape \(5,\)"):
        metrics.deletion(linear, X, BASELINE, 0, X[:5])
    with pytest.raises(InvalidArgumentError, match="steps must be a positive int"):
        metrics.deletion(linear, X, BASELINE, 0, X, steps=0)
    for call in (ATTRIBUTIONS["occlusion"], lambda *a: metrics.deletion(*a, X)):
        with pytest.raises(InputShapeError, match="x must have the model's input shape"):
            call(linear, X[:5], BASELINE[:5], 0)
        with pytest.raises(NonFiniteActivationError, match="x is NaN"):
            call(linear, X * np.nan, BASELINE, 0)
    with pytest.raises(InputShapeError, match="baseline must have the model's input shape"):
        ATTRIBUTIONS["occlusion"](linear, X, BASELINE[:1], 0)
