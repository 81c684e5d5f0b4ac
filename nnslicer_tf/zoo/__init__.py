"""The papers' models: builders and pretrained weights.

    model = zoo.load("resnet10")                    # with the weights of this project
    model = zoo.build("lenet5", (32, 32, 3), 7)     # with fresh weights

Models take images with values in [0, 1], or the word indices of a sentence, and return logits, on
which attacks and slices work. `MODELS` lists them. To add one, write its builder in `models.py`.
"""

import os
from itertools import product
from pathlib import Path

import keras
import numpy as np

from nnslicer_tf import _numerics
from nnslicer_tf._faces import explain_all
from nnslicer_tf._files import load_weights
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import Samples
from nnslicer_tf.zoo.models import MODELS, SHAPES, entry

__all__ = ["MODELS", "accuracy", "build", "load"]


def build(
    name: str, input_shape: tuple[int, ...] | None = None, classes: int | None = None
) -> keras.Model:
    """Build a model with fresh weights; call `keras.utils.set_random_seed` to fix them.

    Args:
        name: A name in `MODELS`.
        input_shape: `(height, width, channels)` of an image, or `(words,)` of a sentence; by
            default that of the data set on which the papers use the model.
        classes: The number of logits; by default that data set's.

    Raises InvalidArgumentError for an unknown name, or a shape that the model cannot take.
    """
    model = entry(name)
    usual_shape, usual_classes = SHAPES[model.dataset]
    shape, classes = input_shape or usual_shape, classes or usual_classes
    try:
        return model.builder(name, shape, classes, **model.options)
    except ValueError as error:
        raise InvalidArgumentError(
            f"'{name}' cannot be built for inputs of shape {shape} and {classes} classes: {error}"
        ) from error


def load(name: str, dataset: str | None = None) -> keras.Model:
    """Build a model with the weights that this project trained.

    Args:
        name: A name in `MODELS`.
        dataset: The data set of the training; by default the model's own.

    Raises InvalidArgumentError for an unknown name, or if there are no weights; CorruptFileError if
    the weights do not fit the model.
    """
    dataset = dataset or entry(name).dataset
    path = weights_path(name, dataset)
    if not path.is_file():
        pairs = product(MODELS, SHAPES)
        available = ["-".join(pair) for pair in pairs if weights_path(*pair).is_file()]
        raise InvalidArgumentError(
            f"There are no trained weights of '{name}' on '{dataset}'; there are {available} "
            "(MODEL-DATASET). Train them in a checkout: "
            f"python apps/train.py {name} --dataset {dataset}"
        )
    model = build(name, *SHAPES[dataset])
    load_weights(model, path)
    return model


def accuracy(model: keras.Model, data: Dataset, batch_size: int = 512) -> float:
    """Return the share of samples whose predicted class is their label; reject numbers."""
    batches = Samples(data.x, model.input_shape[1:]).batches(batch_size)
    outputs = np.concatenate([np.asarray(model.predict_on_batch(batch)) for batch in batches])
    if outputs.shape[-1] > 1:  # not instrumented, so that any model can be measured
        return _numerics.accuracy(outputs.argmax(axis=1), data.y)
    classes = InstrumentedModel(model, data.x.shape[1:]).classes
    if classes.is_number:
        raise InvalidArgumentError(
            f"Model '{model.name}' predicts numbers, which have no accuracy. {classes.remark}"
        )
    return _numerics.accuracy(classes.from_outputs(outputs), data.y)


def weights_path(name: str, dataset: str) -> Path:
    """Return the path of a model's weights for a data set, whether or not it exists."""
    return weights_file(f"{name}-{dataset}.weights.h5")


def weights_file(name: str) -> Path:
    """Return the path of a file of weights, whether or not it exists.

    `name` is relative to the package's own folder for a few small files, else to that in the
    environment variable `NNSLICER_WEIGHTS`, else to `data/weights` of the checkout or this folder.
    """
    installed = Path(__file__).parent / "weights" / name
    if installed.is_file():
        return installed
    checkouts = Path(__file__).parents[2] / "data/weights", Path("data/weights").resolve()
    named = os.environ.get("NNSLICER_WEIGHTS")
    folders = (Path(named), *checkouts) if named else checkouts
    return next((folder for folder in folders if folder.is_dir()), folders[-1]) / name


explain_all(globals())
