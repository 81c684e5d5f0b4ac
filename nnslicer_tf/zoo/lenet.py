"""The LeNet family for 28×28 digits (LeCun et al., Proceedings of the IEEE, 1998).

LeNet-1 and LeNet-4 have the shapes that DeepXplore used (5×5 convolutions, "same"
padding, ReLU, max pooling); LeNet-5 is the well-known one with 61,706 parameters; `lenet`
has exactly the number of parameters that NNSlicer's paper reports. `simplenet` is wider.
"""

import keras
from keras import layers

Shape = tuple[int, int, int]


def lenet(input_shape: Shape = (28, 28, 1), classes: int = 10) -> keras.Model:
    """Build the LeNet of 42,784 parameters (NNSlicer, Table 3): logits.

    The paper gives no widths; 6 and 27 filters and 87 hidden neurons match its number.
    """
    return _build("lenet", input_shape, classes, (6, 27), ("valid", "valid"), (87,))


def lenet1(input_shape: Shape = (28, 28, 1), classes: int = 10) -> keras.Model:
    """Build LeNet-1, 4 and 12 filters: 7,206 parameters, logits."""
    return _build("lenet1", input_shape, classes, (4, 12), ("same", "same"), ())


def lenet4(input_shape: Shape = (28, 28, 1), classes: int = 10) -> keras.Model:
    """Build LeNet-4, 6 and 16 filters, 84 hidden neurons: 69,362 parameters, logits."""
    return _build("lenet4", input_shape, classes, (6, 16), ("same", "same"), (84,))


def lenet5(input_shape: Shape = (28, 28, 1), classes: int = 10) -> keras.Model:
    """Build LeNet-5, 6 and 16 filters, 120 and 84 hidden neurons: 61,706 parameters, logits."""
    return _build("lenet5", input_shape, classes, (6, 16), ("same", "valid"), (120, 84))


def simplenet(input_shape: Shape = (28, 28, 1), classes: int = 10) -> keras.Model:
    """Build the network of Distiller's example for MNIST: 431,080 parameters, logits.

    DFlare's paper compresses a "CNN" with Distiller, and does not say which layers it has.
    """
    return _build("simplenet", input_shape, classes, (20, 50), ("valid", "valid"), (500,))


def _build(
    name: str,
    input_shape: Shape,
    classes: int,
    filters: tuple[int, ...],
    paddings: tuple[str, ...],
    hidden: tuple[int, ...],
) -> keras.Model:
    x = inputs = keras.Input(input_shape, name="input")
    for i, (width, padding) in enumerate(zip(filters, paddings, strict=True), start=1):
        x = layers.Conv2D(width, 5, padding=padding, name=f"conv{i}")(x)
        x = layers.ReLU(name=f"conv{i}_relu")(x)
        x = layers.MaxPooling2D(name=f"pool{i}")(x)
    x = layers.Flatten(name="flatten")(x)
    for i, width in enumerate(hidden, start=1):
        x = layers.Dense(width, name=f"dense{i}")(x)
        x = layers.ReLU(name=f"dense{i}_relu")(x)
    logits = layers.Dense(classes, name="logits")(x)
    return keras.Model(inputs, logits, name=name)
