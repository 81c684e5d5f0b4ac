"""The multilayer perceptron of the semantic slicing paper."""

import keras
from keras import layers


def mlp(input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10) -> keras.Model:
    """Build two hidden layers of 512 and 256 neurons: logits (NeuSemSlice, section 5.1)."""
    inputs = keras.Input(input_shape, name="input")
    x = layers.Flatten(name="flatten")(inputs)
    x = layers.Dense(512, name="dense1")(x)
    x = layers.ReLU(name="relu1")(x)
    x = layers.Dense(256, name="dense2")(x)
    x = layers.ReLU(name="relu2")(x)
    logits = layers.Dense(classes, name="logits")(x)
    return keras.Model(inputs, logits, name="mlp")
