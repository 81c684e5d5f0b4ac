"""Amounts of a product of three factors: two at a time, from left to right."""

import keras
import numpy as np
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.kinds.rescale import product_factors


def test_three_factors_in_closed_form():
    """a·b·c = (a·b)·c, each product by midpoints; the parts add up to the change of the product."""
    rng = np.random.default_rng(0)
    (a, b, c), (a0, b0, c0) = x, x0 = rng.normal(size=(2, 3, 50))
    expected = [
        (b + b0) / 2 * (c + c0) / 2,
        (a + a0) / 2 * (c + c0) / 2,
        (a * b + a0 * b0) / 2,
    ]
    factors = product_factors(list(x), list(x0))
    np.testing.assert_allclose(factors, expected, rtol=1e-12)
    parts = sum(f * (v - v0) for f, v, v0 in zip(factors, x, x0, strict=True))
    np.testing.assert_allclose(parts, a * b * c - a0 * b0 * c0, rtol=1e-9, atol=1e-12)


def test_amounts_of_a_layer_that_multiplies_three():
    rng = np.random.default_rng(1)
    inputs = keras.Input((4,))
    factors = [layers.Dense(3, name=name)(inputs) for name in "abc"]
    model = keras.Model(inputs, layers.Multiply(name="product")(factors))
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, rng.normal(size=(20, 4)), progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False, contribution="amount")
    x = rng.normal(size=(1, 4)).astype(np.float32)
    found = slicer.slice(x, outputs=[1]).neurons
    values = [profile.means[n] for n in "abc"], [layer(x)[0] for layer in model.layers[1:4]]
    (a0, b0, c0), (a, b, c) = np.asarray(values, np.float64)[:, :, 1]
    expected = {
        "a": (b + b0) / 2 * (c + c0) / 2 * (a - a0),
        "b": (a + a0) / 2 * (c + c0) / 2 * (b - b0),
        "c": (a * b + a0 * b0) / 2 * (c - c0),
    }
    for name, amount in expected.items():
        np.testing.assert_allclose(found[name], [0, amount, 0], rtol=1e-4, atol=1e-5)
