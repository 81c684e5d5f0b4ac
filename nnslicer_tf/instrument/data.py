"""Users' data: checked once, when it comes in, then cut into float32 batches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf.errors import (
    InputRangeError,
    InputShapeError,
    InvalidArgumentError,
    NonFiniteActivationError,
)

DataLike: TypeAlias = ArrayLike | Iterable[ArrayLike] | Mapping[str, ArrayLike]
"""An array or tensor of samples, or an iterable of samples or batches, each alone or `(x, …)`;
for a model with several inputs a dict, list or tuple of arrays, or an iterable of such."""


def check_batch_size(batch_size: int) -> int:
    """Return `batch_size`.

    Raises:
        InvalidArgumentError: if it is not a positive int.
    """
    if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise InvalidArgumentError(f"batch_size must be a positive int. Received: {batch_size!r}")
    return int(batch_size)


Bounds: TypeAlias = tuple[float, float]
"""Least and largest value of an input."""


def check_array(
    x: DataLike, shape: Sequence[int], first: int = 0, bounds: Bounds | None = None
) -> np.ndarray:
    """Return `x` as a finite float32 array `(batch, *shape)`.

    Args:
        x: Array or tensor of numbers.
        shape: The model's input shape, without the batch axis.
        first: Index of the first sample, for messages.
        bounds: Least and largest value of an input, if they are known.

    Raises:
        InputShapeError: if `x` has another shape, or is not numeric.
        InputRangeError: if `x` has values outside the bounds.
        NonFiniteActivationError: if `x` has NaN or infinite values.
    """
    array = x if isinstance(x, np.ndarray) else np.asarray(x)
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
    outside = ((array < low) | (array > high)).any(axis=tuple(range(1, array.ndim)))
    if outside.any():
        sample = array[np.argmax(outside)]
        raise InputRangeError(
            f"Sample {first + int(np.argmax(outside))} of the data ranges from {sample.min():.4g} "
            f"to {sample.max():.4g}; the bounds of the model are {low:g} and {high:g}. Scale data "
            "as for training, or let the model do it: InstrumentedModel(model, preprocess=…)."
        )


class Samples:
    """Checked samples: an array is checked as a whole before any work, other data as it is read.

    Args:
        data: An array or tensor of samples, or a `tf.data.Dataset` or other iterable of
            samples or batches, each alone or first in a tuple `(x, …)`.
        shape: The model's input shape, without the batch axis.
        bounds: Least and largest value of an input, if they are known.

    Attributes:
        count: Number of samples, None if it is not known beforehand.

    Raises:
        InvalidArgumentError: if an array is empty.
        InputShapeError: if an array has another shape, or is not numeric.
        InputRangeError: if an array has values outside the bounds.
        NonFiniteActivationError: if a sample of an array has NaN or infinite values.
    """

    def __init__(self, data: DataLike, shape: Sequence[int], bounds: Bounds | None = None) -> None:
        self._shape = tuple(shape)
        self._bounds = bounds
        self._data: np.ndarray | Iterable[ArrayLike]
        self.count = count_samples(data)
        if _is_stream(data):
            self._data = data
            return
        array = np.asarray(data)
        if array.ndim == 0:
            raise InputShapeError(f"Data must be an array or a data set. Received: {data!r}")
        self._data = check_array(array, self._shape, bounds=bounds)
        if not len(array):
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
        for chunk in _chunks(self._data, len(self._shape), size):
            batch = check_array(chunk, self._shape, first, self._bounds)
            first += len(batch)
            if len(batch):
                yield batch
        if first == 0:
            raise _empty()


def batches(data: DataLike, shape: Sequence[int], batch_size: int) -> Iterator[np.ndarray]:
    """Yield float32 batches `(≤ batch_size, *shape)` of `data`; see `Samples`."""
    check_batch_size(batch_size)
    yield from Samples(data, shape).batches(batch_size)


def count_samples(data: DataLike) -> int | None:
    """Return the number of samples of `data`, None if it is not known beforehand."""
    shape = getattr(data, "shape", ())
    return len(data) if shape and isinstance(data, Sized) else None


def _is_stream(data: DataLike) -> TypeGuard[Iterable[ArrayLike]]:
    return not hasattr(data, "shape") and isinstance(data, Iterable)


def _empty() -> InvalidArgumentError:
    return InvalidArgumentError("The data set is empty: no samples were given.")


def _chunks(data: Iterable, rank: int, batch_size: int) -> Iterator[np.ndarray]:
    """Join or cut the elements of an iterable into batches."""
    pending: list[np.ndarray] = []
    held = 0
    for element in data:
        x = np.asarray(element[0] if isinstance(element, (tuple, list)) else element)
        pending.append(x[None] if x.ndim == rank else x)
        held += len(pending[-1])
        if held >= batch_size:
            joined = np.concatenate(pending)
            whole = held - held % batch_size
            for start in range(0, whole, batch_size):
                yield joined[start : start + batch_size]
            pending, held = [joined[whole:]], held - whole
    if held:
        yield np.concatenate(pending)
