"""Data for models with several inputs: one array per input, checked and batched together."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from nnslicer_tf.instrument.data import Bounds, check_array, check_batch_size

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


class Inputs(Mapping[str, np.ndarray]):
    """Samples for a model with several inputs: name of an input → array `(samples, …)`.

    Like an array, it has a length, the number of samples, and can be indexed by rows.

    Args:
        arrays: Name → array; all of the same length.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = dict(arrays)

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __getitem__(self, key: Any) -> Any:
        """Return the array of a named input, or for any other key the `Inputs` of those rows."""
        if isinstance(key, str):
            return self._arrays[key]
        return Inputs({name: array[key] for name, array in self._arrays.items()})

    @property
    def shape(self) -> tuple[int, ...]:
        """Only the number of samples, because the inputs' own shapes differ."""
        return (len(self),)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {array.shape}" for name, array in self._arrays.items())
        return f"Inputs({shapes})"


def arrays_of(batch: np.ndarray | Inputs) -> tuple[np.ndarray, ...]:
    """Return the arrays of a batch, one for each input of the model."""
    return tuple(batch.values()) if isinstance(batch, Inputs) else (batch,)


class SeveralSamples:
    """Checked samples for a model with several inputs; see `Samples`.

    Args:
        data: In any form that Keras accepts: arrays in a dict by input name, or in a list or tuple
            in the inputs' order; or a `tf.data.Dataset` or other iterable of such batches or
            samples, each alone or first in a tuple `(x, …)`.
        shapes: Name → shape of the model's inputs, without the batch axis.
        keys: Alternative keys that a dict may use → names of the inputs.
        bounds: Name → smallest and largest value of the input, if they are known.

    Attributes:
        count: Number of samples, None if it is not known in advance.

    Raises:
        InvalidArgumentError: if there are no samples, or inputs are missing, unknown or of
            different lengths.
        InputShapeError, InputRangeError, NonFiniteActivationError: as in `check_array`.
    """

    def __init__(
        self,
        data: Any,
        shapes: Shapes,
        keys: Mapping[str, str] | None = None,
        bounds: Mapping[str, Bounds | None] | None = None,
    ) -> None:
        self._shapes = dict(shapes)
        self._keys = {**{name: name for name in shapes}, **(keys or {})}
        self._bounds = bounds or {}
        self._inputs: Inputs | None = None
        self._stream: Iterable[Any] = ()
        if isinstance(data, (Mapping, list, tuple)):
            self._inputs = self._check(self._by_name(data), 0)
            self.count: int | None = len(self._inputs)
        elif isinstance(data, Iterable) and not hasattr(data, "shape"):
            self._stream, self.count = data, None
        else:
            raise InputShapeError(f"{self._expected()} Received one {type(data).__name__}.")

    @property
    def inputs(self) -> Inputs:
        """All samples together.

        Raises:
            InvalidArgumentError: if the data is an iterable, or an input has no samples.
        """
        if self._inputs is None:
            raise InvalidArgumentError(f"{self._expected()} Received an iterable.")
        return self._inputs

    def batches(self, size: int) -> Iterator[Any]:
        """Yield `Inputs` of at most `size` samples, in order.

        Raises:
            InvalidArgumentError: if there are no samples, or `size` is not a positive int.
            InputShapeError, InputRangeError, NonFiniteActivationError: for an invalid sample of
                an iterable.
        """
        size = check_batch_size(size)
        if self._inputs is not None:
            for start in range(0, len(self._inputs), size):
                yield self._inputs[start : start + size]
            return
        first = 0
        for chunk in self._chunks(size):
            batch = self._check(chunk, first)
            first += len(batch)
            yield batch
        if first == 0:
            raise _empty()

    def _chunks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Join or cut the elements of the iterable into batches."""
        held: dict[str, np.ndarray] = {}
        for element in self._stream:
            arrays = {name: self._batch(a, name) for name, a in self._element(element).items()}
            if held:
                arrays = {name: np.concatenate([held[name], a]) for name, a in arrays.items()}
            length = len(next(iter(arrays.values())))
            for start in range(0, length - length % size, size):
                yield {name: a[start : start + size] for name, a in arrays.items()}
            held = {name: a[length - length % size :] for name, a in arrays.items()}
        if held and len(next(iter(held.values()))):
            yield held

    def _element(self, element: Any) -> dict[str, np.ndarray]:
        """Return the arrays of an element, which may be `(x, …)` with labels after the inputs."""
        if isinstance(element, tuple) and isinstance(element[0], (Mapping, list, tuple)):
            element = element[0]
        if not isinstance(element, (Mapping, list, tuple)):
            raise InputShapeError(f"{self._expected()} Received one {type(element).__name__}.")
        return self._by_name(element)

    def _batch(self, array: np.ndarray, name: str) -> np.ndarray:
        return array[None] if array.ndim == len(self._shapes[name]) else array

    def _by_name(self, data: Any) -> dict[str, np.ndarray]:
        if isinstance(data, Mapping):
            given = {self._keys.get(key, key): np.asarray(data[key]) for key in data}
            missing = [name for name in self._shapes if name not in given]
            unknown = [key for key in given if key not in self._shapes]
            if missing or unknown:
                raise InvalidArgumentError(
                    f"{self._expected()} Missing: {missing}, unknown: {unknown}."
                )
            return {name: given[name] for name in self._shapes}
        if len(data) != len(self._shapes):
            raise InvalidArgumentError(f"{self._expected()} Received {len(data)}.")
        return {name: np.asarray(a) for name, a in zip(self._shapes, data, strict=True)}

    def _check(self, arrays: Mapping[str, np.ndarray], first: int) -> Inputs:
        checked = {}
        for name, shape in self._shapes.items():
            try:
                checked[name] = check_array(arrays[name], shape, first, self._bounds.get(name))
            except InputShapeError as error:
                raise InputShapeError(f"Input '{name}': {error}") from error
        lengths = {name: len(array) for name, array in checked.items()}
        if len(set(lengths.values())) > 1:
            raise InvalidArgumentError(f"Inputs have different numbers of samples: {lengths}")
        if not any(lengths.values()):
            raise _empty()
        return Inputs(checked)

    def _expected(self) -> str:
        described = ", ".join(f"'{name}' {shape}" for name, shape in self._shapes.items())
        return (
            f"The model has {len(self._shapes)} inputs: {described}. Give an array for each, as a "
            "dict by name or as a list in this order."
        )


def _empty() -> InvalidArgumentError:
    return InvalidArgumentError("The data set is empty: no samples were given.")


def sole_array(data: Any) -> ArrayLike | Iterable[ArrayLike]:
    """Return data for a model with one input; a dict with one entry is replaced by the entry.

    In a dict with several, `Samples` finds the samples by their key.
    """
    if isinstance(data, Mapping) and len(data) == 1:
        return next(iter(data.values()))
    return data
