"""The pairs of models that the experiments use, by name.

`lenet1` and `resnet20` are the published pairs of DiffChaser (an original .h5 file and its
8-bit TFLite file), from a folder that the caller names. `<zoo model>-<compressor>` is a
model of the zoo with its own weights, and the model that one of our compressors makes of it;
compressed models are written once into a working folder.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import atomic_path
from nnslicer_tf._names import check_name
from nnslicer_tf._random import as_generator
from nnslicer_tf.dflare import compressors
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.model_pair import ModelPair, Preprocess
from nnslicer_tf.errors import InvalidArgumentError

PUBLISHED = {
    "lenet1": ("lenet1.h5", "lenet1-quan.lite", "mnist", "unit"),
    "resnet20": ("resnet.h5", "resnet-quan.lite", "cifar10", "standard"),
}

_STUDENTS = {"lenet5": "lenet1", "lenet": "lenet1", "digits_cnn": "mlp"}
"""Network → the smaller one that learns from it in knowledge distillation."""


@dataclass(frozen=True)
class NamedPair:
    """Two models, and how images become their inputs.

    Attributes:
        name: The pair's name.
        dataset: The data set of the models.
        load_original: Loads a fresh original model.
        load_compressed: Loads a fresh compressed model.
        preprocess: Maps uint8 images to model inputs.
    """

    name: str
    dataset: str
    load_original: Callable[[], ModelLike]
    load_compressed: Callable[[], ModelLike]
    preprocess: Preprocess


def pair_names() -> tuple[str, ...]:
    """Return the names that `load_pair` knows; other zoo models with weights work too."""
    made = [f"{model}-{kind}" for model in _STUDENTS for kind in COMPRESSORS]
    return (*PUBLISHED, *made)


def load_pair(
    name: str, published: str | os.PathLike | None = None, work: str | os.PathLike = "runs/pairs"
) -> NamedPair:
    """Return a pair by name; a model of the zoo is compressed now if it was not before.

    Args:
        name: One of `pair_names()`.
        published: The folder with DiffChaser's models, for `lenet1` and `resnet20`.
        work: The folder for models that are made.

    Raises:
        InvalidArgumentError: if the name is unknown or a file of the pair is missing.
    """
    if name in PUBLISHED:
        return _published(name, published)
    model, _, kind = name.partition("-")
    if model not in zoo.names() or kind not in COMPRESSORS:
        check_name("pair", name, pair_names())
    return _compressed(name, model, kind, Path(work))


def uint8_images(dataset: str, split: str) -> np.ndarray:
    """Return images of a data set as `(samples, height, width, channels) uint8`, 0 … 255."""
    data = datasets.load(dataset, split, normalise="none")
    scale = datasets.normalisation(dataset, "none").maximum
    return np.rint(data.x * (255 / scale)).astype(np.uint8)


def seed_images(pair: NamedPair, count: int, rng: int | np.random.Generator) -> np.ndarray:
    """Return random test images on which both models of a pair agree (section 4.1).

    Args:
        pair: The two models.
        count: How many; all of them if there are fewer.
        rng: Chooses them.
    """
    images = uint8_images(pair.dataset, "test")
    models = ModelPair(pair.load_original(), pair.load_compressed(), ImageDomain(), pair.preprocess)
    agreed = np.flatnonzero(~models.ask(images).deviates)
    return images[np.sort(as_generator(rng).permutation(agreed)[:count])]


def _published(name: str, folder: str | os.PathLike | None) -> NamedPair:
    original, compressed, dataset, normalise = PUBLISHED[name]
    files = [Path(folder or ".") / file for file in (original, compressed)]
    for file in files:
        if not file.is_file():
            raise InvalidArgumentError(
                f"The pair '{name}' needs the file '{file}'. Name the folder with DiffChaser's "
                "models (lenet1.h5, lenet1-quan.lite, resnet.h5, resnet-quan.lite)."
            )
    scale = datasets.normalisation(dataset, normalise)
    return NamedPair(
        name,
        dataset,
        lambda: keras.models.load_model(files[0], compile=False),
        lambda: files[1],
        scale.apply,
    )


def _compressed(name: str, model: str, kind: str, work: Path) -> NamedPair:
    """Compress a zoo model with probabilities, and keep the file."""
    dataset = zoo.MODELS[model].dataset
    file_type, compress = COMPRESSORS[kind]
    path = work / f"{name}.{file_type}"
    if not path.exists():
        made = compress(model, _original(model), dataset)
        with atomic_path(path) as temporary:
            if isinstance(made, bytes):
                temporary.write_bytes(made)
            else:
                made.save(temporary)

    def load_compressed() -> ModelLike:
        return path if file_type == "tflite" else keras.models.load_model(path, compile=False)

    return NamedPair(name, dataset, lambda: _original(model), load_compressed, _to_unit)


def _to_unit(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32) / np.float32(255)


def _original(model: str) -> keras.Model:
    return compressors.with_softmax(zoo.load(model))


def _integer(model: str, original: keras.Model, dataset: str) -> bytes:
    return compressors.quantize_integer(original, datasets.load(dataset, "train[:500]").x)


def _distilled(model: str, original: keras.Model, dataset: str) -> keras.Model:
    if model not in _STUDENTS:
        raise InvalidArgumentError(f"There is no student for '{model}', only for {set(_STUDENTS)}.")
    data = datasets.load(dataset, "train")
    keras.utils.set_random_seed(0)
    student = compressors.with_softmax(zoo.build(_STUDENTS[model], data.x.shape[1:], data.classes))
    return compressors.distill(original, student, data.x, epochs=5, progress=False)


def _mutated(share: float) -> Callable[[str, keras.Model, str], keras.Model]:
    return lambda model, original, dataset: compressors.mutate_weights(original, share, rng=0)


COMPRESSORS: dict[str, tuple[str, Callable]] = {
    "dynamic": ("tflite", lambda model, original, dataset: compressors.quantize_dynamic(original)),
    "integer": ("tflite", _integer),
    "pruned": (
        "keras",
        lambda model, original, dataset: compressors.prune_magnitude(original, 0.5),
    ),
    "distilled": ("keras", _distilled),
    **{f"mutated{percent}": ("keras", _mutated(percent / 100)) for percent in (10, 20, 30, 40, 50)},
}
"""Compressor name -> (file type, function of model name, original and data set)."""
