"""Arrays by name: `Inputs` of a model with several, and `Activations` of its operations."""

import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._tables import ShownAsTable, arrays_frame
from nnslicer_tf.errors import NonFiniteActivationError

if TYPE_CHECKING:
    import pandas as pd


class Inputs(Mapping[str, np.ndarray]):
    """Samples for a model with several inputs: name of an input → array `(samples, …)`.

    Its length is the number of samples, and it can be indexed by rows, like an array.
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


def drawn(x: np.ndarray | Inputs, most: int) -> np.ndarray:
    """Return indices of at most `most` samples, drawn by CRC-32: the same ones in any order."""
    rows = zip(*map(np.ascontiguousarray, arrays_of(x)), strict=True)
    keys = [zlib.crc32(b"".join(part.tobytes() for part in row)) for row in rows]
    return np.argsort(keys, kind="stable")[:most]


class Activations(ShownAsTable, dict[str, np.ndarray]):
    """Captured values: operation name → array `(samples, *operation shape)` float32."""

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per operation: shape and summary statistics."""
        return arrays_frame(self)

    def __repr__(self) -> str:
        return f"Activations({', '.join(f'{name}: {value.shape}' for name, value in self.items())})"


def check_finite(values: Mapping[str, np.ndarray], first: int) -> None:
    """Raise NonFiniteActivationError if values are not finite; `first` is the batch's start."""
    for name, value in values.items():
        if not np.isfinite(value).all():
            bad = ~np.isfinite(value).reshape(len(value), -1).all(axis=1)
            raise NonFiniteActivationError(
                f"Operation '{name}' gives NaN or infinite values for sample "
                f"{first + int(np.argmax(bad))}. Check the weights, preprocessing and padding."
            )
