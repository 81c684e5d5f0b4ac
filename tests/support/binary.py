"""A classifier with one sigmoid, and its twin that has an output for each class."""

import keras
import numpy as np
import pytest
from keras import layers

SIZES = {"a": 24, "b": 16}


def network(units, final):
    inputs = keras.Input((10,), name="x")
    y = layers.Dense(SIZES["a"], "relu", name="a")(inputs)
    y = layers.Dense(SIZES["b"], "relu", name="b")(y)
    return keras.Model(inputs, layers.Dense(units, final, name="out")(y))


def twin_of(model):
    """A model with the scores −z/2 and z/2, whose softmax is the sigmoid of the logit z."""
    twin = network(2, "softmax")
    for name in SIZES:
        twin.get_layer(name).set_weights(model.get_layer(name).get_weights())
    kernel, bias = model.get_layer("out").get_weights()
    both = [np.concatenate([-v, v], axis=-1) / 2 for v in (kernel, bias)]
    twin.get_layer("out").set_weights(both)
    return twin


@pytest.fixture(scope="module")
def binary():
    """A trained classifier of two classes, its samples and their labels."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 10)).astype(np.float32)
    y = (x[:, :3].sum(axis=1) + 0.8 * rng.normal(size=400) > 0).astype(int)
    model = network(1, "sigmoid")
    model.compile("adam", "binary_crossentropy")
    model.fit(x, y, epochs=3, verbose=0)
    return model, x, y
