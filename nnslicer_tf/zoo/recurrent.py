"""Recurrent classifiers of images, which read them row by row."""

import keras
from keras import layers


def lstm_rows(input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10) -> keras.Model:
    """Build an LSTM of 64 units that reads an image from its first row to its last: logits.

    Le, Jaitly and Hinton, "A simple way to initialize recurrent networks of rectified linear
    units", 2015, read MNIST pixel by pixel; rows make sequences of 28 steps instead of 784.
    """
    height, width, channels = input_shape
    inputs = keras.Input(input_shape, name="input")
    rows = layers.Reshape((height, width * channels), name="rows")(inputs)
    x = layers.LSTM(64, name="lstm")(rows)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x), name="lstm_rows")
