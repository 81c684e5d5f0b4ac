"""A small trained-like model for the tests of the slicer, with its profile."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns


@pytest.fixture(scope="module")
def im():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(6, 3, padding="same", activation="relu", name="first")(inputs)
    h = layers.BatchNormalization(name="norm")(layers.Conv2D(6, 3, padding="same", name="inner")(x))
    x = layers.ReLU(name="out")(layers.Add(name="join")([h, x]))
    x = layers.MaxPooling2D(name="pool")(x)
    x = layers.DepthwiseConv2D(3, padding="same", name="depth")(x)
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    outputs = layers.Dense(4, activation="softmax", name="dense")(x)
    return nns.InstrumentedModel(keras.Model(inputs, outputs))


@pytest.fixture(scope="module")
def x(im):
    return np.random.default_rng(1).normal(size=(40, *im.input_shape)).astype(np.float32)


@pytest.fixture(scope="module")
def profile(im, x):
    return nns.Profile.from_data(im, x, progress=False)


@pytest.fixture
def slicer(im, profile):
    return nns.Slicer(im, profile, theta=0.3, workers=0, progress=False)
