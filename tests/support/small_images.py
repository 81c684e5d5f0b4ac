"""Fixtures: a small convolutional classifier and its inputs."""

import keras
import numpy as np
import pytest

from nnslicer_tf.dflare import with_softmax


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(5)
    logits = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu", bias_initializer="ones"),
            keras.layers.Dense(3),
        ]
    )
    return with_softmax(logits)


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(0).random((64, 6, 6, 1), np.float32)
