"""AlexNet for 32×32 images (based on Krizhevsky et al., NeurIPS 2012)."""

import keras
from keras import layers


def alexnet(input_shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build five convolutions and one hidden dense layer of 4,096: 19 M parameters, logits.

    As in the semantic slicing paper's AlexNet (section 5.2), the hidden dense layer holds
    87.97 % of the parameters.
    """
    inputs = keras.Input(input_shape, name="input")
    x = _conv(inputs, 64, 5, "conv1")
    x = layers.MaxPooling2D(name="pool1")(x)
    x = _conv(x, 192, 3, "conv2")
    x = layers.MaxPooling2D(name="pool2")(x)
    x = _conv(x, 384, 3, "conv3")
    x = _conv(x, 256, 3, "conv4")
    x = _conv(x, 256, 3, "conv5")
    x = layers.MaxPooling2D(name="pool5")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(4096, kernel_initializer="he_normal", name="dense1")(x)
    x = layers.ReLU(name="dense1_relu")(x)
    x = layers.Dropout(0.5, name="dropout")(x)
    logits = layers.Dense(classes, name="logits")(x)
    return keras.Model(inputs, logits, name="alexnet")


def _conv(x: keras.KerasTensor, width: int, kernel: int, name: str) -> keras.KerasTensor:
    x = layers.Conv2D(width, kernel, padding="same", kernel_initializer="he_normal", name=name)(x)
    return layers.ReLU(name=f"{name}_relu")(x)
