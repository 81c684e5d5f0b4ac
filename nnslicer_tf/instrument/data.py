"""Reading of users' data: all analyses read their samples through this module.

Arrays, nested lists, tensors, data frames, `datasets.Dataset`, `tf.data.Dataset`, loaders of
PyTorch and of Keras, other iterables, and names of files, folders and public data sets are all
treated in the same way: checked once, then cut into float32 batches. `read_labelled` also reads
labels.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf._checks import as_array, check_labels
from nnslicer_tf.datasets import Dataset, load_data
from nnslicer_tf.errors import (
    InputRangeError,
    InputShapeError,
    InvalidArgumentError,
    NonFiniteActivationError,
)

DataLike: TypeAlias = ArrayLike | Iterable[ArrayLike] | Dataset | str | os.PathLike
"""Samples in any of these forms:

- an array, nested list, tensor or data frame of samples, or a pair `(x, y)`;
- a `datasets.Dataset`, or what `datasets.load_data` loads: "cifar10:test", a folder of images, …;
- an iterable (`tf.data.Dataset`, `DataLoader`, `PyDataset`) of samples or batches; each is an
  array, a tuple `(x, …)`, or a dictionary with a key such as x, image or input;
- for a model with several inputs: a dict, list or tuple of arrays, or an iterable of these.
"""

_KEYS = ("x", "image", "images", "input", "inputs", "pixel_values", "features")
_LABEL_KEYS = ("y", "label", "labels", "class", "target", "targets")


def check_batch_size(batch_size: int) -> int:
    """Return `batch_size`.

    Raises:
        InvalidArgumentError: if it is not a positive int.
    """
    if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise InvalidArgumentError(f"batch_size must be a positive int. Received: {batch_size!r}")
    return int(batch_size)


Bounds: TypeAlias = tuple[float, float]
"""Smallest and largest value of an input."""


class WholeBounds(tuple[float, float]):
    """Bounds of an input of integers or booleans, which cuts off fractions."""


def bounds_of_dtype(dtype: str) -> Bounds | None:
    """Return the bounds of an input of a dtype; None for floating-point numbers."""
    if dtype == "bool":
        return WholeBounds((0.0, 1.0))
    if "int" not in dtype:
        return None
    limits = np.iinfo(dtype)
    is_small = limits.bits <= 16
    low = float(limits.min) if is_small or dtype[0] == "u" else -np.inf
    return WholeBounds((low, float(limits.max) if is_small else np.inf))


def check_array(
    x: DataLike, shape: Sequence[int], first: int = 0, bounds: Bounds | None = None
) -> np.ndarray:
    """Return `x` as a finite float32 array `(batch, *shape)`.

    Args:
        x: Array or tensor of numbers.
        shape: The model's input shape, without the batch axis.
        first: Index of the first sample, for messages.
        bounds: Smallest and largest value of an input, if they are known.

    Raises:
        InputShapeError: if `x` has a different shape, or is not numeric.
        InputRangeError: if `x` has values outside the bounds, or fractions where integers belong.
        NonFiniteActivationError: if `x` has NaN or infinite values.
    """
    array = as_array(x)
    if array.dtype.kind not in "fiub":
        raise InputShapeError(f"Data must be real numbers. Received an array of {array.dtype}.")
    if array.ndim != len(shape) + 1 or array.shape[1:] != tuple(shape):
        expected = ", ".join(["samples", *map(str, shape)])
        raise InputShapeError(
            f"The model takes data of shape ({expected}). Received shape {array.shape}."
        )
    array = np.ascontiguousarray(array, dtype=np.float32)
    finite = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    if not finite.all():
        sample = first + int(np.argmin(finite))
        raise NonFiniteActivationError(
            f"Sample {sample} of the data has NaN or infinite values. Remove or repair it."
        )
    if bounds is not None:
        _check_bounds(array, bounds, first)
    return array


def _check_bounds(array: np.ndarray, bounds: Bounds, first: int) -> None:
    low, high = bounds
    if isinstance(bounds, WholeBounds) and (fractions := array != np.floor(array)).any():
        sample = first + int(np.argmax(fractions.any(axis=tuple(range(1, array.ndim)))))
        raise InputRangeError(
            f"The model takes integers and would cut off fractions. Sample {sample} of the data "
            f"has the value {array[fractions][0]:.4g}. Pass the integers of the training data."
        )
    outside = ((array < low) | (array > high)).any(axis=tuple(range(1, array.ndim)))
    if outside.any():
        sample = array[np.argmax(outside)]
        raise InputRangeError(
            f"Sample {first + int(np.argmax(outside))} of the data ranges from {sample.min():.4g} "
            f"to {sample.max():.4g}; the bounds of the model are {low:g} and {high:g}. Scale data "
            "as for training, or let the model do it: InstrumentedModel(model, preprocess=…)."
        )


class Samples:
    """Checked samples: arrays are checked as a whole before any work, other data as it is read.

    Args:
        data: Samples in one of the forms of `DataLike`.
        shape: The model's input shape, without the batch axis.
        bounds: Smallest and largest value of an input, if they are known.

    Attributes:
        count: Number of samples, None if it is not known in advance.

    Raises:
        InvalidArgumentError: if an array is empty.
        InputShapeError: if an array has a different shape or is not numeric, or `data` is not data.
        InputRangeError: if an array has values outside the bounds.
        NonFiniteActivationError: if a sample of an array has NaN or infinite values.
    """

    def __init__(self, data: DataLike, shape: Sequence[int], bounds: Bounds | None = None) -> None:
        self._shape = tuple(shape)
        self._bounds = bounds
        self._data: np.ndarray | Iterable[Any]
        x = _opened(data, self._shape, labels=False)[0]
        self.count = count_samples(x)
        if not isinstance(x, np.ndarray):
            self._data = x
            return
        self._data = check_array(x, self._shape, bounds=bounds)
        if not len(x):
            raise _empty()

    def batches(self, size: int) -> Iterator[np.ndarray]:
        """Yield float32 batches `(≤ size, *shape)`, in order.

        Raises:
            InvalidArgumentError: if there are no samples, or `size` is not a positive int.
            InputShapeError, InputRangeError, NonFiniteActivationError: for an invalid sample of
                an iterable.
        """
        size = check_batch_size(size)
        if isinstance(self._data, np.ndarray):
            for start in range(0, len(self._data), size):
                yield self._data[start : start + size]
            return
        first = 0
        for chunk in _chunks(self._data, self._shape, size):
            batch = check_array(chunk, self._shape, first, self._bounds)
            first += len(batch)
            if len(batch):
                yield batch
        if first == 0:
            raise _empty()

    def array(self) -> np.ndarray:
        """Return all samples as one float32 array `(samples, *shape)`; errors as in `batches`."""
        if isinstance(self._data, np.ndarray):
            return self._data
        return np.concatenate(list(self.batches(1024)))


def batches(data: DataLike, shape: Sequence[int], batch_size: int) -> Iterator[np.ndarray]:
    """Yield float32 batches `(≤ batch_size, *shape)` of `data`; see `Samples`."""
    check_batch_size(batch_size)
    yield from Samples(data, shape).batches(batch_size)


def read_labelled(
    data: DataLike,
    y: ArrayLike | None,
    shape: Sequence[int],
    bounds: Bounds | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return samples `(samples, *shape)` float32 and their labels `(samples,)` int64.

    Args:
        data: Samples in one of the forms of `DataLike`.
        y: Their labels, integers or one-hot; None if `data` has them: a `Dataset`, a pair
            `(x, y)`, a name that `datasets.load_data` knows, or an iterable of pairs.
        shape: The model's input shape, without the batch axis.
        bounds: Smallest and largest value of an input, if they are known.

    Raises:
        InvalidArgumentError: if there are no labels, or not one for each sample.
        InputShapeError, InputRangeError, NonFiniteActivationError: as in `Samples`.
    """
    if y is not None:
        x = Samples(data, shape, bounds).array()
        return x, check_labels(y, len(x))
    found, labels = _opened(data, tuple(shape), labels=True)
    if not isinstance(found, np.ndarray):
        pairs = [_pair(element, tuple(shape)) for element in found]
        each = [label for _, label in pairs if label is not None]
        if len(each) < len(pairs):
            raise _no_labels(data)
        found = np.concatenate([x for x, _ in pairs]) if pairs else np.zeros((0, *shape))
        labels = np.concatenate(each) if each else np.zeros(0, np.int64)
    if labels is None or (len(found) and not len(labels)):
        raise _no_labels(data)
    x = Samples(found, shape, bounds).array()
    return x, check_labels(labels, len(x))


def count_samples(data: DataLike) -> int | None:
    """Return the number of samples in `data`, None if it is not known in advance."""
    if isinstance(data, Dataset):
        return len(data)
    shape = getattr(data, "shape", ())
    return len(data) if shape and isinstance(data, Sized) else None


def _empty() -> InvalidArgumentError:
    return InvalidArgumentError("The data set is empty: no samples were given.")


def _no_labels(data: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        "Labels are needed here: pass y, or data that has them: (x, y), a datasets.Dataset, an "
        f"iterable of pairs (x, y). Received: {type(data).__name__}"
    )


def _opened(
    data: Any, shape: tuple[int, ...], labels: bool
) -> tuple[np.ndarray | Iterable[Any], Any]:
    """Return samples as an array or iterable, and their labels if they are known.

    Args:
        data: Samples in one of the forms of `DataLike`.
        shape: Shape of one sample.
        labels: Whether a file must have labels.
    """
    if isinstance(data, (str, os.PathLike)):
        data = load_data(data, labels=labels, shape=shape)
    if isinstance(data, Dataset):
        return as_array(data.x), data.y
    if isinstance(data, Mapping):
        return _from_mapping(data)
    if hasattr(data, "shape"):
        x = as_array(data)
        if x.ndim == 0:
            raise _no_data(data)
        return x, None
    if isinstance(data, (list, tuple)):
        return _from_sequence(data, shape)
    if hasattr(data, "num_batches") and hasattr(data, "__getitem__"):  # a PyDataset of Keras
        return _Items(data, data.num_batches), None
    if isinstance(data, Iterable):
        return data, None
    if isinstance(data, Sized) and hasattr(data, "__getitem__"):  # a data set of PyTorch
        return _Items(data, len(data)), None
    raise _no_data(data)


def _no_data(data: object) -> InputShapeError:
    return InputShapeError(
        "Data must be an array, list, tensor or data frame of samples, a datasets.Dataset, a "
        "tf.data.Dataset or other iterable, or the name of a data set, file or folder. Received: "
        f"{type(data).__name__} {str(data)[:60]}"
    )


class _Items(Iterable):
    """Iterable over the items of an object that has `__getitem__` and a length."""

    def __init__(self, data: Any, count: int) -> None:
        self._data = data
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        return (self._data[i] for i in range(self._count))


def _from_sequence(data: Sequence, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the samples in a list or tuple of samples, batches or pairs, or in one pair (x, y)."""
    ranks = [_rank(item) for item in data]
    of_batch = len(ranks) == 2 and ranks[0] == len(shape) + 1
    if of_batch and (isinstance(data, tuple) or ranks[1] != ranks[0]):
        return as_array(data[0]), data[1]
    has_keys = any(isinstance(item, Mapping) for item in data)
    if ranks and set(ranks) <= {0, len(shape)} and not has_keys:
        return as_array(data), None
    return data, None


def _rank(item: Any) -> int:
    """Return the number of axes of an array, or of nested lists judging by their first entries."""
    if hasattr(item, "shape"):
        return len(item.shape)
    if isinstance(item, (list, tuple)):
        return 1 + _rank(item[0]) if item else 1
    return 0


def _entry(element: Mapping, keys: Sequence[str]) -> Any:
    """Return the entry of a dictionary under one of several keys, None if there is none."""
    return next((value for key, value in element.items() if str(key).lower() in keys), None)


def _from_mapping(element: Mapping) -> tuple[np.ndarray, Any]:
    """Return the samples in a dictionary, and the labels if it has any, otherwise None.

    Raises:
        InputShapeError: if it has no samples.
    """
    x = _entry(element, _KEYS)
    if x is None:
        raise InputShapeError(
            f"Data has the keys {', '.join(map(str, element))}; samples are looked for under "
            f"{', '.join(_KEYS)}."
        )
    return as_array(x), _entry(element, _LABEL_KEYS)


def _pair(element: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the samples `(batch, *shape)` in an iterable's element, and labels if it has any.

    Raises:
        InputShapeError: if it is neither a sample nor a batch.
    """
    y: Any = None
    if isinstance(element, Mapping):
        x, y = _from_mapping(element)
    elif _is_pair(element, shape):
        x, y = as_array(element[0]), element[1] if len(element) > 1 else None
    else:
        x = as_array(element)
    labels = None if y is None else as_array(y)
    if x.ndim == len(shape):
        return x[None], None if labels is None else labels[None]
    if x.ndim != len(shape) + 1:
        raise InputShapeError(
            f"The model takes samples of shape {shape}, alone or in batches. Received an element "
            f"of shape {x.shape}."
        )
    return x, labels


def _is_pair(element: Any, shape: tuple[int, ...]) -> bool:
    """Whether an element is `(x, …)` rather than a sample or batch written as a list."""
    if not isinstance(element, (tuple, list)) or not element:
        return False
    rank = _rank(element[0])
    if rank == len(shape):  # a sample and its label, or a batch as a list of samples
        return isinstance(element, tuple) or len({np.shape(part) for part in element}) > 1
    return rank == len(shape) + 1


def _chunks(data: Iterable, shape: tuple[int, ...], batch_size: int) -> Iterator[np.ndarray]:
    """Join or cut the elements of an iterable into batches."""
    pending: list[np.ndarray] = []
    held = 0
    for element in data:
        pending.append(_pair(element, shape)[0])
        held += len(pending[-1])
        if held >= batch_size:
            joined = np.concatenate(pending)
            whole = held - held % batch_size
            for start in range(0, whole, batch_size):
                yield joined[start : start + batch_size]
            pending, held = [joined[whole:]], held - whole
    if held:
        yield np.concatenate(pending)
