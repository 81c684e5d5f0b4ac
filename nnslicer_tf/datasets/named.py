"""Public data sets by name, as arrays or `tf.data`, with splits and a choice of normalisations.

`digits` (scikit-learn's 1,797 images of 8×8) needs no download; `mnist`, `fashion_mnist` and
`cifar10` come from TensorFlow Datasets: from the folder `TFDS_DATA_DIR` if they are prepared
there, otherwise by download. `sst2` holds sentences as word numbers; `texts` has the sentences
themselves.

`load` holds a whole split in memory as float32 (600 MB for CIFAR-10's training images); `stream`
does not. `"standard"` reads all training images once per process, which takes seconds.
"""

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._checks import check_name, did_you_mean
from nnslicer_tf._environment import require
from nnslicer_tf.errors import (
    DatasetUnavailableError,
    InvalidArgumentError,
    MissingPackageError,
)

if TYPE_CHECKING:
    import tensorflow as tf

NORMALISATIONS = ("none", "unit", "standard")

_DIGITS_TRAIN = 1_437


@dataclass(frozen=True)
class _Source:
    """Properties of a data set that are known without opening it."""

    maximum: float  # the largest raw value
    classes: tuple[str, ...]  # their names
    host: str | None  # where TFDS downloads it from; None: part of scikit-learn


_DIGITS = tuple("0123456789")
_CLOTHES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
_THINGS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_SOURCES = {
    "digits": _Source(16.0, _DIGITS, None),
    "mnist": _Source(255.0, _DIGITS, "storage.googleapis.com"),
    "fashion_mnist": _Source(
        255.0, _CLOTHES, "fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    ),
    "cifar10": _Source(255.0, _THINGS, "www.cs.toronto.edu"),
}
_SENTENCES = {"sst2": 2}  # name → classes
_GLUE = "dl.fbaipublicfiles.com"


@dataclass(frozen=True)
class Normalisation:
    """The map x ↦ (x - mean) / std from raw values to a model's input.

    Attributes:
        name: `"none"`, `"unit"` or `"standard"`.
        mean: (channels,) float64, in raw values.
        std: (channels,) float64, in raw values.
        maximum: Largest raw value (255; 16 for digits).
    """

    name: str
    mean: np.ndarray
    std: np.ndarray
    maximum: float

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """Return raw images (N, height, width, channels) as float32 model input."""
        x = np.array(raw, np.float32)  # in place, because a float64 copy would double the memory
        x -= self.mean.astype(np.float32)
        x /= self.std.astype(np.float32)
        return x

    def invert(self, x: np.ndarray) -> np.ndarray:
        """Return model input as raw values, float32."""
        return (x * self.std + self.mean).astype(np.float32)


@dataclass(frozen=True, repr=False)
class Dataset:
    """Images and labels.

    Attributes:
        x: (N, height, width, channels) float32; from a file, of any shape and dtype.
        y: (N,) int64 class indices; (0,) for a file that was read without labels.
        name: Name of the data set, or path of the file.
        split: Split in TFDS syntax; empty for a file.
        normalise: Name of the normalisation; `"none"` for a file.
        classes: Number of classes; 0 without labels.
        class_names: Names of the classes, in order; empty if they have none.
        columns: Names of a table's columns; empty for other data.
    """

    x: np.ndarray
    y: np.ndarray
    name: str
    split: str
    normalise: str
    classes: int
    class_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        split = f"[{self.split}]" if self.split else ""
        return (
            f"Dataset({self.name}{split}: {len(self):,} inputs {self.x.shape[1:]} {self.x.dtype}, "
            f"{self.classes} classes, normalise={self.normalise!r})"
        )

    def to_tf(self, batch_size: int = 256) -> "tf.data.Dataset":
        """Return the batches (x, y), in order, as a `tf.data.Dataset`."""
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((self.x, self.y)).batch(batch_size)


def names() -> tuple[str, ...]:
    """Return the names of the data sets that `load` knows."""
    return (*_SOURCES, *_SENTENCES)


def load(name: str, split: str = "train", *, normalise: str = "unit") -> Dataset:
    """Load a split of a named data set into memory.

    Args:
        name: One of `names()`.
        split: TFDS syntax: `"test"`, `"train[:1000]"`, `"train[80%:]"`,
            `"train[:10]+test[:10]"`. The digits are ordered by their index modulo 10, so
            that every split has digits by every writer (those by writers not seen in training
            are harder); the first 1,437 are the training split, the other 360 the test split.
        normalise: `"none"` (raw values as float32), `"unit"` (divided by 255, digits by 16, to
            lie within [0, 1]) or `"standard"` ((raw - mean) / std for each channel, with
            statistics of the training images). Has no effect on sentences.

    Returns:
        A `Dataset` with x (N, height, width, channels) float32, or (N, words) int32 for
        sentences, and y (N,) int64.

    Raises:
        InvalidArgumentError: for an unknown name, split or normalisation.
        DatasetUnavailableError: if the set is neither prepared nor downloadable.
    """
    if name in _SENTENCES:
        check_name("normalisation", normalise, NORMALISATIONS)
        return _sentences(name, split)
    scale = normalisation(name, normalise)
    raw, y = _raw(name, split)
    if not len(raw):
        raise InvalidArgumentError(f"The split '{split}' of '{name}' is empty.")
    classes = _SOURCES[name].classes
    return Dataset(scale.apply(raw), y, name, split, normalise, len(classes), classes)


def stream(
    name: str, split: str = "train", *, normalise: str = "unit", batch_size: int = 256
) -> "tf.data.Dataset":
    """Return the batches (x float32, y int64) of a split, in order, reading them lazily.

    Arguments and errors are those of `load`.
    """
    import tensorflow as tf

    if name in _SENTENCES or _source(name).host is None:
        return load(name, split, normalise=normalise).to_tf(batch_size)
    scale = normalisation(name, normalise)
    mean = tf.constant(scale.mean, tf.float32)
    std = tf.constant(scale.std, tf.float32)

    def convert(image: Any, label: Any) -> tuple[Any, Any]:
        return (tf.cast(image, tf.float32) - mean) / std, label

    return _tfds(name, split).batch(batch_size).map(convert).prefetch(2)


def load_spec(spec: str, *, normalise: str = "unit", split: str = "test") -> Dataset:
    """Load `"name:split"`, such as `"cifar10:test[:100]"`; without a split, `split` is used."""
    name, _, chosen = spec.partition(":")
    return load(name, chosen or split, normalise=normalise)


def normalisation(name: str, kind: str) -> Normalisation:
    """Return the map from the raw values of data set `name` to model input.

    Raises:
        InvalidArgumentError: for an unknown name or kind.
        DatasetUnavailableError: if `"standard"` needs images that are not available.
    """
    source = _source(name)
    check_name("normalisation", kind, NORMALISATIONS)
    if kind == "none":
        return Normalisation(kind, np.zeros(1), np.ones(1), source.maximum)
    if kind == "unit":
        return Normalisation(kind, np.zeros(1), np.full(1, source.maximum), source.maximum)
    mean, std = _training_statistics(name)
    return Normalisation(kind, np.array(mean), np.array(std), source.maximum)


@cache
def _training_statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return every channel's mean and standard deviation over the training images.

    Sums are float64, because float32 sums over 50,000 images lose a third of the mean.
    """
    count, total, squares = 0, np.zeros(1), np.zeros(1)
    for raw in _raw_chunks(name):
        values = raw.reshape(-1, raw.shape[-1]).astype(np.float64)
        count += len(values)
        total = total + values.sum(axis=0)
        squares = squares + (values**2).sum(axis=0)
    mean = total / count
    std = np.sqrt(squares / count - mean**2)
    return tuple(mean.tolist()), tuple(std.tolist())


def _raw_chunks(name: str) -> Iterator[np.ndarray]:
    """Yield all raw training images in pieces of bounded size."""
    if _source(name).host is None:
        yield _raw(name, "train")[0]
        return
    for images, _ in _tfds(name, "train").batch(5_000).as_numpy_iterator():
        yield images


def _source(name: str) -> _Source:
    if name not in _SOURCES:
        raise InvalidArgumentError(
            f"There is no data set {name!r}.{did_you_mean(name, names())} It is one of "
            f"{', '.join(names())}, or the path of a folder of images, or of an .npz, .npy or "
            ".csv file."
        )
    return _SOURCES[name]


def _raw(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return raw images (uint8, or float32 for digits) and int64 labels of a split."""
    if _source(name).host is None:
        return _digits(split)
    batches = list(_tfds(name, split).batch(5_000).as_numpy_iterator())
    if not batches:
        return np.zeros((0, 1, 1, 1), np.uint8), np.zeros(0, np.int64)
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels).astype(np.int64)


# --- digits: part of scikit-learn ------------------------------------------------------


def _digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.argsort(np.arange(len(labels)) % 10, kind="stable")
    splits = {"train": order[:_DIGITS_TRAIN], "test": order[_DIGITS_TRAIN:]}
    chosen = split_indices(split, splits)
    return images.reshape(-1, 8, 8, 1)[chosen].astype(np.float32), labels[chosen].astype(np.int64)


def split_indices(split: str, splits: dict[str, np.ndarray]) -> np.ndarray:
    """Return the indices that a split in TFDS syntax selects, such as `train[:10%]+test`.

    Args:
        split: The split.
        splits: Name → indices of each whole split.

    Raises:
        InvalidArgumentError: if the split does not have this syntax, or its name is unknown.
    """
    return np.concatenate([_part(part, splits) for part in split.split("+")])


_PART = re.compile(r"(?P<name>\w+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


def _part(part: str, splits: dict[str, np.ndarray]) -> np.ndarray:
    """Return the indices selected by one term of a split, such as `train[10%:-5]`."""
    match = _PART.fullmatch(part.strip())
    if match is None or match["name"] not in splits:
        raise InvalidArgumentError(
            f"Unknown split '{part}': write for example 'test', 'train[:100]' or "
            f"'train[80%:]'. There are {', '.join(splits)}."
        )
    whole = splits[match["name"]]

    def place(text: str | None) -> int | None:
        if text is None or not text.endswith("%"):
            return None if text is None else int(text)
        return round(int(text[:-1]) / 100 * len(whole))

    return whole[place(match["start"]) : place(match["stop"])]


# --- sentences -------------------------------------------------------------------------


def _sentences(name: str, split: str) -> Dataset:
    """Return sentences as word numbers in the zoo's vocabulary."""
    from nnslicer_tf.datasets import texts

    sentences = texts.load(name, split)
    if not len(sentences):
        raise InvalidArgumentError(f"The split '{split}' of '{name}' is empty.")
    x = texts.vocabulary(name).encode(sentences.text)
    return Dataset(x, sentences.y, name, split, "none", _SENTENCES[name])


def tfds_rows(name: str, split: str) -> "tf.data.Dataset":
    """Return the rows of a split as dicts of features, in the order of the files."""
    return _tfds(name, split, supervised=False)


# --- TensorFlow Datasets ---------------------------------------------------------------


def _tfds(name: str, split: str, supervised: bool = True) -> "tf.data.Dataset":
    """Return the unbatched (image, label) pairs of a split, in the order of the files."""
    builder = _prepared(name) or _download(name)
    try:
        return builder.as_dataset(split=split, as_supervised=supervised, shuffle_files=False)
    except (ValueError, AssertionError) as error:
        raise InvalidArgumentError(
            f"Unknown split '{split}' of '{name}': write for example 'test', 'train[:100]' "
            f"or 'train[80%:]'. There are {', '.join(builder.info.splits)}. ({error})"
        ) from error


def _tfds_package() -> Any:
    """Import TensorFlow Datasets.

    Raises:
        DatasetUnavailableError: if it is not installed.
    """
    try:
        return require(
            "tensorflow_datasets",
            "Public data sets but 'digits' are read by",
            "Files and folders need nothing: an .npz with x and y, a folder of images.",
        )
    except MissingPackageError as error:
        raise DatasetUnavailableError(str(error)) from error


def _data_dir() -> Path:
    return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def _prepared(name: str) -> Any | None:
    """Return the TFDS builder of a data set that is prepared on this machine, or None.

    It is created from the data set's folder, so that TFDS does not use the network.
    """
    tfds = _tfds_package()
    versions = sorted((_data_dir() / name).glob("*/dataset_info.json"))
    if not versions:
        return None
    return tfds.builder_from_directory(versions[-1].parent)


def _download(name: str) -> Any:
    """Download and prepare a data set; fail at once if its host cannot be reached."""
    tfds = _tfds_package()
    host = _SOURCES[name].host if name in _SOURCES else _GLUE
    try:
        # TFDS would retry for minutes; this detects an unreachable host at once.
        socket.create_connection((host, 443), timeout=5).close()
        builder = tfds.builder(name, data_dir=_data_dir())
        builder.download_and_prepare()
    except Exception as error:  # TFDS raises many kinds: network, checksum, disk
        raise DatasetUnavailableError(
            f"The data set '{name}' is not prepared in '{_data_dir()}' and cannot be "
            f"downloaded from {host}: {error}. Set TFDS_DATA_DIR to the folder that contains "
            f"{name}/VERSION/, or run `tfds build {name}` with a network connection, "
            "or give a folder of images, or an .npz file with arrays x and y."
        ) from error
    return builder
