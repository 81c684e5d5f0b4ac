"""`Inputs`: samples for a model with several inputs."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


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
