"""The networks compared in DeepXplore's experiments."""

import os
from pathlib import Path

import keras
from keras import layers

from nnslicer_tf._checks import check_name
from nnslicer_tf._files import load_weights
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.downloads import sources
from reproduction.zoo.models import zoo

_OF_CIFAR10 = ("resnet10", "resnet10_preactivation", "vit")
DATASETS = ("mnist", "cifar10")


def networks(dataset: str, folder: Path) -> list[InstrumentedModel]:
    """Return three classifiers of MNIST or of CIFAR-10.

    For MNIST, LeNet-1 and LeNet-4 have the weights that DeepXplore's authors published, in a folder
    (`lenet1_weights.h5`, `lenet4_weights.h5`); all others are those of the zoo.
    """
    check_name("data set", dataset, DATASETS)
    if dataset == "cifar10":
        return [InstrumentedModel(zoo.load(name, dataset)) for name in _OF_CIFAR10]
    models = [published_lenet(name, folder / f"{name}_weights.h5") for name in ("lenet1", "lenet4")]
    return [InstrumentedModel(model) for model in (*models, zoo.load("lenet5", dataset))]


PUBLISHED = {"lenet1": ((4, 12), ()), "lenet4": ((6, 16), (84,)), "lenet5": ((6, 16), (120, 84))}
"""Name → filters of the two convolutions, units of the hidden dense layers."""


def published_lenet(name: str, weights: str | os.PathLike | None = None) -> keras.Model:
    """Build a LeNet as the authors did: it maps images within 0 … 1 to probabilities.

    Its layers fuse their activations and have the authors' names, so that it has as many
    neurons as in the paper. Without an .h5 file of the authors, its weights are random.
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
        path = Path(weights)
        if not path.is_file():
            raise InvalidArgumentError(
                f"There is no file '{path}' with the weights of {model.name}. "
                f"{sources()['deepxplore'].how_to_get()}"
            )
        load_weights(model, path)
    return model
