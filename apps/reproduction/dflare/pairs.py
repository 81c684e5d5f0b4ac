"""The pairs of models that the experiments use, by name.

`lenet1` and `resnet20` are the published pairs of DiffChaser (an original .h5 file and its
8-bit TFLite file), from a folder that the caller names. `<model>-<compressor>` is a model of the
zoo with its own weights, or the published original, and what one of our compressors makes of it;
compressed models are written once into a working folder.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import keras
import numpy as np

from nnslicer_tf import datasets, pruning
from nnslicer_tf._checks import as_generator, check_name
from nnslicer_tf._files import atomic_path
from nnslicer_tf.dflare import Domain, ModelPair, compress, with_softmax
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.model_pair import Preprocess
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.fingerprint import model_fingerprint
from reproduction.dflare.distillation import distill
from reproduction.downloads import sources
from reproduction.zoo.models import zoo

PUBLISHED = {
    "lenet1": ("lenet1.h5", "lenet1-quan.lite", "mnist", "unit"),
    "resnet20": ("resnet.h5", "resnet-quan.lite", "cifar10", "standard"),
}

_STUDENTS = {
    **dict.fromkeys(("lenet4", "lenet5", "lenet", "simplenet"), "lenet1"),
    "digits_cnn": "mlp",
    **dict.fromkeys(("resnet20", "plainnet20", "vgg16"), "resnet10"),
}
"""Network → the one that learns from it in knowledge distillation."""

LAYER = "layer"
"""Compressor that prunes the convolution whose number, from 1, comes after this."""


@dataclass(frozen=True)
class NamedPair:
    """Two models, loaded afresh at each call, and how uint8 images become their inputs."""

    name: str
    dataset: str
    load_original: Callable[[], ModelLike]
    load_compressed: Callable[[], ModelLike]
    preprocess: Preprocess

    def load(self, domain: Domain | None = None) -> ModelPair:
        """Return both models, freshly loaded, with a kind of input."""
        models = self.load_original(), self.load_compressed()
        return ModelPair(*models, self.preprocess, domain=domain)


@dataclass(frozen=True)
class _Original:
    """A model with probabilities, to be compressed."""

    name: str
    dataset: str
    normalise: str
    load: Callable[[], keras.Model]

    def samples(self, split: str) -> np.ndarray:
        """Return inputs of the model."""
        return datasets.load(self.dataset, split, normalise=self.normalise).x

    def preprocess(self, images: np.ndarray) -> np.ndarray:
        """Return the inputs of the model that uint8 images are."""
        if self.normalise == "unit":
            return images.astype(np.float32) / np.float32(255)
        return datasets.normalisation(self.dataset, self.normalise).apply(images)


Compressor = tuple[str, Callable[[_Original], bytes | keras.Model]]
"""File type, and function of the original."""


def pair_names() -> tuple[str, ...]:
    """Return the names that `load_pair` knows; other zoo models with weights work too."""
    made = [f"{model}-{kind}" for model in _STUDENTS for kind in COMPRESSORS]
    return (*PUBLISHED, *made)


def load_pair(
    name: str, published: str | os.PathLike | None = None, work: str | os.PathLike = "runs/pairs"
) -> NamedPair:
    """Return a pair, one of `pair_names()`; a zoo's model is compressed now if it was not before.

    The folder `published` has DiffChaser's models, for `lenet1` and `resnet20`.
    """
    if name in PUBLISHED:
        original, file = load_original(name, published), _published_file(name, 1, published)
        return NamedPair(name, original.dataset, original.load, lambda: file, original.preprocess)
    model, _, kind = name.partition("-")
    layer = re.fullmatch(rf"{LAYER}(\d+)", kind)
    if model not in zoo.MODELS or not (layer or kind in COMPRESSORS):
        check_name("pair", name, pair_names())
    original = load_original(model, published)
    file_type, compressor = COMPRESSORS.get(kind, ("keras", _layer_pruned))
    if layer:
        compressor = partial(_layer_pruned, number=int(layer[1]))
    # The file is named after the original's weights, which may be trained again.
    path = Path(work) / f"{name}-{model_fingerprint(original.load())[:12]}.{file_type}"
    if not path.exists():
        made = compressor(original)
        with atomic_path(path) as temporary:
            if isinstance(made, bytes):
                temporary.write_bytes(made)
            else:
                made.save(temporary)

    def load_compressed() -> ModelLike:
        return path if file_type == "tflite" else keras.models.load_model(path, compile=False)

    return NamedPair(name, original.dataset, original.load, load_compressed, original.preprocess)


def convolutions(model: keras.Model) -> list[keras.layers.Conv2D]:
    """Return the convolutions of a model, in order."""
    return [layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]


def uint8_images(dataset: str, split: str) -> np.ndarray:
    """Return images of a data set as `(samples, height, width, channels) uint8`, 0 … 255."""
    data = datasets.load(dataset, split, normalise="none")
    scale = datasets.normalisation(dataset, "none").maximum
    return np.rint(data.x * (255 / scale)).astype(np.uint8)


def seed_images(pair: NamedPair, count: int, rng: int | np.random.Generator) -> np.ndarray:
    """Return `count` random test images on which both models agree, or all (section 4.1)."""
    images = uint8_images(pair.dataset, "test")
    agreed = np.flatnonzero(~pair.load().ask(images).deviates)
    return images[np.sort(as_generator(rng).permutation(agreed)[:count])]


def _published_file(name: str, which: int, folder: str | os.PathLike | None) -> Path:
    """Return the original file of a published pair, number 0, or the compressed one, number 1."""
    path = Path(folder or ".") / PUBLISHED[name][which]
    if not path.is_file():
        raise InvalidArgumentError(
            f"The pair '{name}' needs the file '{path}'. {sources()['diffchaser'].how_to_get()}"
        )
    return path


def load_original(model: str, folder: str | os.PathLike | None) -> _Original:
    """Return a published original, or a model of the zoo."""
    if model not in PUBLISHED:
        dataset = zoo.models.entry(model).dataset
        return _Original(model, dataset, "unit", lambda: with_softmax(zoo.load(model)))
    path = _published_file(model, 0, folder)
    load = partial(keras.models.load_model, path, compile=False)
    return _Original(model, *PUBLISHED[model][2:], load)


def _distilled(original: _Original) -> keras.Model:
    if original.name not in _STUDENTS:
        known = ", ".join(_STUDENTS)
        raise InvalidArgumentError(f"There is no student for '{original.name}', only for {known}.")
    data = datasets.load(original.dataset, "train", normalise=original.normalise)
    keras.utils.set_random_seed(0)
    student = with_softmax(zoo.build(_STUDENTS[original.name], data.x.shape[1:], data.classes))
    return distill(original.load(), student, data.x, epochs=5)


def _retrained(original: _Original) -> keras.Model:
    """Return a copy with half of its weights, which were trained for two more epochs."""
    model = original.load()
    pruned = pruning.prune(model, pruning.scores(model, "weight"), 0.5)
    data = datasets.load(original.dataset, "train[:90%]", normalise=original.normalise)
    pruning.fine_tune(pruned, data.x, data.y, 2, learning_rate=1e-4, from_logits=False)
    return pruning.without_masks(pruned)


def _layer_pruned(original: _Original, number: int) -> keras.Model:
    """Return a copy with half of the weights of one convolution, numbered from 1."""
    model = original.load()
    names = [layer.name for layer in convolutions(model)]
    if not 1 <= number <= len(names):
        raise InvalidArgumentError(
            f"'{original.name}' has convolutions 1 to {len(names)}. Received: {number}"
        )
    return compress(model, "prune", layers=[names[number - 1]])


COMPRESSORS: dict[str, Compressor] = {
    "dynamic": ("tflite", lambda original: compress(original.load(), "dynamic")),
    "integer": (
        "tflite",
        lambda original: compress(original.load(), "int8", original.samples("train[:500]")),
    ),
    "pruned": ("keras", lambda original: compress(original.load(), "prune")),
    "retrained": ("keras", _retrained),
    "distilled": ("keras", _distilled),
    **{
        f"mutated{r}": ("keras", lambda o, r=r: compress(o.load(), "mutate", ratio=r / 100))
        for r in (10, 20, 30, 40, 50)
    },
}
"""Compressor name → file type, function of the original."""
