"""Models whose outputs are known in closed form."""

import keras
import numpy as np

import nnslicer_tf as nns
from nnslicer_tf.instrument import copy_model


def brightness_model(threshold, name, pixels=(4, 4, 1)):
    """Two classes: 1 where the mean of the image is above `threshold`."""
    inputs = keras.Input(pixels)
    flat = keras.layers.Flatten()(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, name="logits")(flat), name=name)
    size = int(np.prod(pixels))
    kernel = np.outer(np.full(size, 1 / size), [-1, 1])
    model.set_weights([kernel, np.array([threshold, -threshold])])
    return model


def identity_model(size):
    """Outputs its inputs, `(size,)`."""
    model = keras.Sequential([keras.Input((size,)), keras.layers.Dense(size, name="same")])
    model.set_weights([np.eye(size), np.zeros(size)])
    return model


def negated(model, name, channel, factor=3.0):
    """Return a copy, instrumented, in which a layer's weights to one channel are × -`factor`."""
    copy = copy_model(model)
    weights = copy.get_layer(name).kernel.numpy()
    weights[..., channel] *= -factor
    copy.get_layer(name).kernel.assign(weights)
    return nns.InstrumentedModel(copy)
