"""Exact lines of models whose output is a map, against the model itself."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns


def map_of(*tail):
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 6, 2))
    y = layers.Conv2D(4, 3, activation="relu", padding="same")(x)
    for layer in tail:
        y = layer(y)
    return keras.Model(x, y)


MODELS = {
    "map": lambda: map_of(layers.Conv2D(1, 3, padding="same")),
    "channels": lambda: map_of(layers.Conv2D(3, 1)),
    "rectified": lambda: map_of(layers.Conv2D(2, 3, activation="relu")),
    "classes": lambda: map_of(layers.Conv2D(3, 1, activation="softmax")),
    "enlarged": lambda: map_of(layers.UpSampling2D(2), layers.Conv2D(1, 3, padding="same")),
    "flat": lambda: map_of(layers.Conv2D(1, 3), layers.Flatten()),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_line_of_a_map_is_linear_between_its_points(name):
    im = nns.InstrumentedModel(MODELS[name]())
    rng = np.random.default_rng(0)
    q, r = rng.normal(scale=2, size=(2, 6, 6, 2))
    line = nns.exactline.exact_line(im, q, r)
    assert len(line.ratios) > 3
    assert line.outputs.shape == (len(line.ratios), *im[im.logit_operation].shape)
    ratios = np.sort(rng.uniform(size=200))
    x = (q + ratios.reshape(-1, 1, 1, 1) * (r - q)).astype(np.float32)
    logits = im.logits(x).reshape(len(x), -1)
    outputs = line.outputs.reshape(len(line.ratios), -1)
    expected = [np.interp(ratios, line.ratios, column) for column in outputs.T]
    np.testing.assert_allclose(logits, np.transpose(expected), atol=1e-4)


def test_lines_of_maps_together_are_those_alone():
    im = nns.InstrumentedModel(MODELS["map"]())
    ends = np.random.default_rng(0).normal(size=(2, 3, 6, 6, 2))
    for q, r, line in zip(*ends, nns.exactline.LineWalker(im).lines(*ends), strict=True):
        np.testing.assert_allclose(line.outputs, nns.exactline.exact_line(im, q, r).outputs)
