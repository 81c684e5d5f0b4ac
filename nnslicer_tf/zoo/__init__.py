"""The papers' models: builders, pretrained weights, and training.

Every model of the zoo takes images with values in [0, 1], or the indices of a sentence's words, and
returns logits: attacks and slices work on logits, and the caller can add a softmax. All are
functional models.

Adding a model: write its builder in the file of its family (arguments `input_shape` and
`classes`), and add a line to `MODELS`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import keras

from nnslicer_tf._checks import check_name
from nnslicer_tf._files import load_weights, save_weights
from nnslicer_tf.datasets.texts import LENGTH
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.zoo.alexnet import alexnet
from nnslicer_tf.zoo.applications import mobilenet_v3_large, mobilenet_v3_small, resnet101, vgg19
from nnslicer_tf.zoo.digits import digits_cnn
from nnslicer_tf.zoo.lenet import lenet, lenet1, lenet4, lenet5, simplenet
from nnslicer_tf.zoo.mlp import mlp
from nnslicer_tf.zoo.recurrent import lstm_rows
from nnslicer_tf.zoo.resnet import (
    plainnet20,
    resnet10,
    resnet10_preactivation,
    resnet18,
    resnet20,
)
from nnslicer_tf.zoo.text import text_lstm, text_transformer
from nnslicer_tf.zoo.training import (
    DEFAULT_RECIPE,
    RECIPES,
    Recipe,
    accuracy,
    in_precision,
    train,
)
from nnslicer_tf.zoo.transformer import vit
from nnslicer_tf.zoo.vgg import vgg16

__all__ = [
    "DEFAULT_RECIPE",
    "MODELS",
    "RECIPES",
    "Entry",
    "Recipe",
    "accuracy",
    "alexnet",
    "build",
    "digits_cnn",
    "entry",
    "in_precision",
    "lenet",
    "lenet1",
    "lenet4",
    "lenet5",
    "load",
    "lstm_rows",
    "mlp",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "names",
    "plainnet20",
    "resnet10",
    "resnet10_preactivation",
    "resnet18",
    "resnet20",
    "resnet101",
    "save_weights",
    "simplenet",
    "text_lstm",
    "text_transformer",
    "train",
    "vgg16",
    "vgg19",
    "vit",
    "weights_path",
]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    Attributes:
        builder: Called with `input_shape` and `classes`.
        dataset: The data set on which the papers use it.
    """

    builder: Callable[..., keras.Model]
    dataset: str


MODELS: dict[str, Entry] = {
    "digits_cnn": Entry(digits_cnn, "digits"),
    "mlp": Entry(mlp, "mnist"),
    "lenet": Entry(lenet, "mnist"),
    "lenet1": Entry(lenet1, "mnist"),
    "lenet4": Entry(lenet4, "mnist"),
    "lenet5": Entry(lenet5, "mnist"),
    "simplenet": Entry(simplenet, "mnist"),
    "lstm_rows": Entry(lstm_rows, "mnist"),
    "resnet10": Entry(resnet10, "cifar10"),
    "resnet10_preactivation": Entry(resnet10_preactivation, "cifar10"),
    "resnet18": Entry(resnet18, "cifar10"),
    "resnet20": Entry(resnet20, "cifar10"),
    "plainnet20": Entry(plainnet20, "cifar10"),
    "alexnet": Entry(alexnet, "cifar10"),
    "vgg16": Entry(vgg16, "cifar10"),
    "resnet101": Entry(resnet101, "cifar10"),
    "vgg19": Entry(vgg19, "imagenet"),
    "mobilenet_v3_small": Entry(mobilenet_v3_small, "cifar10"),
    "mobilenet_v3_large": Entry(mobilenet_v3_large, "cifar10"),
    "vit": Entry(vit, "cifar10"),
    "text_transformer": Entry(text_transformer, "sst2"),
    "text_lstm": Entry(text_lstm, "sst2"),
}

_SHAPES = {
    "digits": ((8, 8, 1), 10),
    "mnist": ((28, 28, 1), 10),
    "fashion_mnist": ((28, 28, 1), 10),
    "cifar10": ((32, 32, 3), 10),
    "imagenet": ((224, 224, 3), 1000),
    "sst2": ((LENGTH,), 2),
}


def names() -> tuple[str, ...]:
    """Return the names of the models that `build` knows."""
    return tuple(MODELS)


def build(
    name: str,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
) -> keras.Model:
    """Build a model with fresh weights; call `keras.utils.set_random_seed` to fix them.

    Args:
        name: One of `names()`.
        input_shape: (height, width, channels) of an image, with values in [0, 1], or (words,)
            of a sentence; by default that of the data set on which the papers use the model.
        classes: The number of logits; by default that data set's.

    Raises:
        InvalidArgumentError: for an unknown name, or a shape that the model cannot take.
    """
    model = entry(name)
    usual_shape, usual_classes = _SHAPES[model.dataset]
    shape, classes = input_shape or usual_shape, classes or usual_classes
    try:
        return model.builder(input_shape=shape, classes=classes)
    except ValueError as error:
        raise InvalidArgumentError(
            f"'{name}' cannot be built for inputs of shape {shape} and {classes} classes: {error}"
        ) from error


def load(name: str, dataset: str | None = None) -> keras.Model:
    """Build a model with the weights that this project trained.

    Args:
        name: One of `names()`.
        dataset: The data set that it was trained on; by default the model's own.

    Raises:
        InvalidArgumentError: for an unknown name, or if there are no weights.
        CorruptFileError: if the weights do not fit the model.
    """
    dataset = dataset or entry(name).dataset
    path = weights_path(name, dataset)
    if not path.is_file():
        pairs = product(MODELS, _SHAPES)
        have = ["-".join(pair) for pair in pairs if weights_path(*pair).is_file()]
        raise InvalidArgumentError(
            f"There are no trained weights of '{name}' on '{dataset}'; there are {have} "
            "(MODEL-DATASET). Train them in a checkout: "
            f"python apps/train.py {name} --dataset {dataset}"
        )
    model = build(name, *_SHAPES[dataset])
    load_weights(model, path)
    return model


def weights_path(name: str, dataset: str) -> Path:
    """Return the path of a model's weights for a data set, whether or not it exists."""
    return weights_file(f"{name}-{dataset}.weights.h5")


def weights_file(name: str) -> Path:
    """Return the path of a file of weights, whether or not it exists.

    A few small files are installed with the package. The others are in the folder that the
    environment variable `NNSLICER_WEIGHTS` names (every script of `apps/` sets it to its
    checkout's), else in `data/weights` of the package's checkout or of the working directory.

    Args:
        name: The file's path below the folder of weights.
    """
    installed = Path(__file__).parent / "weights" / name
    if installed.is_file():
        return installed
    checkouts = Path(__file__).parents[2] / "data/weights", Path("data/weights").resolve()
    named = os.environ.get("NNSLICER_WEIGHTS")
    folders = (Path(named), *checkouts) if named else checkouts
    return next((folder for folder in folders if folder.is_dir()), folders[-1]) / name


def entry(name: str) -> Entry:
    """Return the zoo's entry for a model.

    Raises:
        InvalidArgumentError: for an unknown name; the message suggests similar ones.
    """
    check_name("model", name, MODELS)
    return MODELS[name]
