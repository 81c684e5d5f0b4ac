"""Public data sets by name, with splits and a choice of normalisations.

`digits` (scikit-learn's 1,797 images of 8×8) needs no download; `mnist`, `fashion_mnist` and
`cifar10` come from TensorFlow Datasets, see `sources`. `sst2` holds sentences as word numbers;
`texts` has the sentences themselves.

`load` holds a split in memory as float32 (600 MB for CIFAR-10's training images). `"standard"`
reads all training images once per process, which takes seconds.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from nnslicer_tf._checks import check_name, counted, did_you_mean
from nnslicer_tf.datasets import texts
from nnslicer_tf.datasets.sources import split_indices, tfds_split
from nnslicer_tf.errors import InvalidArgumentError

NORMALISATIONS = ("none", "unit", "standard")

CLASSES = {
    "digits": tuple("0123456789"),
    "mnist": tuple("0123456789"),
    "fashion_mnist": (
        *("T-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    "cifar10": (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
}
"""Data set of images → names of its classes."""


@dataclass(frozen=True)
class Normalisation:
    """The map x ↦ (x - mean) / std from raw values to a model's input."""

    name: str  # `"none"`, `"unit"` or `"standard"`
    mean: np.ndarray  # `(channels,)` float64, in raw values
    std: np.ndarray  # `(channels,)` float64, in raw values
    maximum: float  # largest raw value (255; 16 for digits)

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """Return raw images `(N, height, width, channels)` as float32 model input."""
        x = np.array(raw, np.float32)  # in place, because a float64 copy would double the memory
        x -= self.mean.astype(np.float32)
        x /= self.std.astype(np.float32)
        return x


@dataclass(frozen=True, repr=False)
class Dataset:
    """Samples and labels.

    Attributes:
        x: `(N, height, width, channels)` float32; from a file, of any shape and dtype.
        y: `(N,)` int64 class indices; `(0,)` for a file that was read without labels.
        name: Name of the data set, or path of the file.
        split: Split in TFDS syntax; empty for a file.
        normalise: Name of the normalisation; `"none"` for a file.
        classes: Number of classes; 0 without labels.
        class_names: Names of the classes, in order; empty if they have none.
        columns: Names of a table's columns; empty for other data.
        alphabetical: Whether the classes were numbered in the alphabetical order of the names in
            a file or folder, which may not be the model's order.
    """

    x: np.ndarray
    y: np.ndarray
    name: str
    split: str
    normalise: str
    classes: int
    class_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    alphabetical: bool = False

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        split = f"[{self.split}]" if self.split else ""
        return (
            f"Dataset({self.name}{split}: {counted(len(self), 'input')} {self.x.shape[1:]} "
            f"{self.x.dtype}, {counted(self.classes, 'class')}, normalise={self.normalise!r})"
        )


def names() -> tuple[str, ...]:
    """Return the names of the data sets that `load` knows."""
    return (*CLASSES, *texts.NAMES)


def load(name: str, split: str = "train", *, normalise: str = "unit") -> Dataset:
    """Load a split of a named data set into memory.

    Args:
        name: One of `names()`.
        split: TFDS syntax: `"test"`, `"train[:1000]"`, `"train[80%:]"`,
            `"train[:10]+test[:10]"`. The digits' first 1,437 are the training split, the other 360
            the test split, ordered by index modulo 10, so that both have digits by every writer
            (those by unseen writers are harder).
        normalise: `"none"` (raw values as float32), `"unit"` (divided by 255, digits by 16, to
            lie within [0, 1]) or `"standard"` ((raw - mean) / std for each channel, with
            statistics of the training images). Has no effect on sentences.

    Returns a `Dataset` with x `(N, height, width, channels)` float32, or `(N, words)` int32 for
    sentences, and y `(N,)` int64.

    Raises InvalidArgumentError for an unknown name, split or normalisation; DatasetUnavailableError
    if the set is neither prepared nor downloadable.
    """
    if name in texts.NAMES:
        check_name("normalisation", normalise, NORMALISATIONS)
        sentences = texts.load(name, split)
        if len(sentences):
            x = texts.vocabulary(name).encode(sentences.text)
            return Dataset(x, sentences.y, name, split, "none", 2)
    else:
        scale = normalisation(name, normalise)
        raw, y = _images(name, split)
        if len(raw):
            classes = CLASSES[name]
            return Dataset(scale.apply(raw), y, name, split, normalise, len(classes), classes)
    raise InvalidArgumentError(f"The split '{split}' of '{name}' is empty.")


def normalisation(name: str, kind: str) -> Normalisation:
    """Return the map from a data set's raw values to model input.

    Raises InvalidArgumentError for an unknown name or kind; DatasetUnavailableError if `"standard"`
    needs images that are not available.
    """
    if name not in CLASSES:
        raise InvalidArgumentError(
            f"Unknown data set {name!r}.{did_you_mean(name, names())} Expected one of: "
            f"{', '.join(map(repr, names()))}; or the path of a folder of images, or of an .npz, "
            ".npy or .csv file."
        )
    check_name("normalisation", kind, NORMALISATIONS)
    maximum = 16.0 if name == "digits" else 255.0
    if kind == "standard":
        mean, std = _training_statistics(name)
        return Normalisation(kind, np.array(mean), np.array(std), maximum)
    return Normalisation(kind, np.zeros(1), np.full(1, maximum if kind == "unit" else 1), maximum)


@cache
def _training_statistics(name: str) -> tuple[list[float], list[float]]:
    from sklearn.preprocessing import StandardScaler

    images, _ = _images(name, "train")
    moments = StandardScaler()
    for start in range(0, len(images), 5_000):  # in float64, some at a time
        values = images[start : start + 5_000].reshape(-1, images.shape[-1])
        moments.partial_fit(values.astype(np.float64))
    return moments.mean_.tolist(), moments.scale_.tolist()


def _images(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return raw images (uint8, or float32 for digits) and int64 labels of a split."""
    if name != "digits":
        batches = list(tfds_split(name, split).batch(5_000).as_numpy_iterator())
        if not batches:
            return np.zeros((0, 1, 1, 1), np.uint8), np.zeros(0, np.int64)
        images, labels = zip(*batches, strict=True)
        return np.concatenate(images), np.concatenate(labels).astype(np.int64)

    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.argsort(np.arange(len(labels)) % 10, kind="stable")
    chosen = split_indices(split, {"train": order[:1_437], "test": order[1_437:]})
    return images.reshape(-1, 8, 8, 1)[chosen].astype(np.float32), labels[chosen].astype(np.int64)
