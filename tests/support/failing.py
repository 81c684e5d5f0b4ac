"""A small classifier that gets some samples wrong."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.debugging import Runs


@pytest.fixture(scope="module")
def im():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, padding="same", activation="relu", name="first")(inputs)
    h = layers.BatchNormalization(name="norm")(layers.Conv2D(4, 3, padding="same", name="inner")(x))
    x = layers.ReLU(name="out")(layers.Add(name="join")([h, x]))
    x = layers.Flatten(name="flat")(layers.MaxPooling2D(name="pool")(x))
    x = layers.Dense(8, activation="relu", name="hidden")(x)
    model = keras.Model(inputs, layers.Dense(3, name="logits")(x))
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if not weight.path.endswith(("gamma", "variance")):
            weight.assign(weight + 0.1 * rng.normal(size=weight.shape))
    return nns.InstrumentedModel(model)


@pytest.fixture(scope="module")
def samples(im):
    return np.random.default_rng(5).normal(size=(300, *im.input_shape)).astype(np.float32)


@pytest.fixture(scope="module")
def data(im):
    """Samples and labels, of which the model gets about every fourth wrong."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, *im.input_shape)).astype(np.float32)
    y = im.logits(x).argmax(axis=1)
    wrong = rng.random(len(y)) < 0.25
    y[wrong] = (y[wrong] + rng.integers(1, 3, wrong.sum())) % 3
    return x, y


@pytest.fixture(scope="module")
def runs(im, data):
    return Runs.split(im, *data)


@pytest.fixture(scope="module")
def pairs(runs):
    return (runs.failing.x, runs.failing.right), (runs.passing.x, runs.passing.right)
