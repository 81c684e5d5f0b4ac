"""A small CNN for scikit-learn's 8×8 digits, used in the demonstration and the tests."""

import keras
from keras import layers


def digits_cnn(input_shape: tuple[int, int, int] = (8, 8, 1), classes: int = 10) -> keras.Model:
    """Build two 3×3 convolutions (16, 32), a max pooling and a dense layer: logits."""
    inputs = keras.Input(input_shape, name="input")
    x = layers.Conv2D(16, 3, padding="same", name="conv1")(inputs)
    x = layers.ReLU(name="relu1")(x)
    x = layers.MaxPooling2D(name="pool1")(x)
    x = layers.Conv2D(32, 3, name="conv2")(x)
    x = layers.ReLU(name="relu2")(x)
    x = layers.Flatten(name="flatten")(x)
    logits = layers.Dense(classes, name="logits")(x)
    return keras.Model(inputs, logits, name="digits_cnn")
