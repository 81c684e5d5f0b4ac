"""The LeNets whose weights DeepXplore's authors published.

    model = published_lenet("lenet1", "folder/lenet1_weights.h5")

The files are in the authors' repository, https://github.com/peikexin9/deepxplore, folder
MNIST: `model1.h5`, `model2.h5` and `model3.h5` are LeNet-1, LeNet-4 and LeNet-5.
"""

import os
from pathlib import Path

import keras
from keras import layers

from nnslicer_tf._files import load_weights
from nnslicer_tf._names import check_name
from nnslicer_tf.errors import InvalidArgumentError

PUBLISHED: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "lenet1": ((4, 12), ()),
    "lenet4": ((6, 16), (84,)),
    "lenet5": ((6, 16), (120, 84)),
}
"""Name → filters of the two convolutions, units of the hidden dense layers."""


def published_lenet(name: str, weights: str | os.PathLike | None = None) -> keras.Model:
    """Build a LeNet as the authors did: it maps images within 0 … 1 to probabilities.

    Its layers fuse their activations and have the authors' names, so that it has as many
    neurons as in the paper.

    Args:
        name: `"lenet1"`, `"lenet4"` or `"lenet5"`.
        weights: An .h5 file of the authors; random weights without it.

    Raises:
        InvalidArgumentError: for an unknown name, or if there is no such file.
        CorruptFileError: if the file does not hold the model's weights.
    """
    check_name("LeNet", name, PUBLISHED)
    filters, hidden = PUBLISHED[name]
    x = inputs = keras.Input((28, 28, 1), name="input_1")
    for i, width in enumerate(filters, start=1):
        conv = layers.Conv2D(width, 5, padding="same", activation="relu", name=f"block{i}_conv1")
        x = layers.MaxPooling2D(name=f"block{i}_pool1")(conv(x))
    x = layers.Flatten(name="flatten")(x)
    for i, width in enumerate(hidden, start=1):
        x = layers.Dense(width, activation="relu", name=f"fc{i}")(x)
    x = layers.Dense(10, name="before_softmax")(x)
    outputs = layers.Activation("softmax", name="predictions")(x)
    model = keras.Model(inputs, outputs, name=name)
    if weights is not None:
        _load(model, Path(weights))
    return model


def _load(model: keras.Model, path: Path) -> None:
    if not path.is_file():
        raise InvalidArgumentError(
            f"There is no file '{path}' with the weights of {model.name}: they are in the "
            "authors' repository, https://github.com/peikexin9/deepxplore, folder MNIST."
        )
    load_weights(model, path)
