"""Places: the values that a model and its compressed copy both have."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import keras
import numpy as np

from nnslicer_tf.instrument import InstrumentedModel, copy_model


@dataclass(frozen=True)
class Place:
    """A value that both models have.

    Attributes:
        operation: Name of the original's operation that computes it.
        kernel: Name of the kernel that it is computed with; None if it has none.
        tensor: Name of the value in the compressed model; for a value with a kernel, the output
            of the step that multiplies by it.
        stored: How the compressed model stores the kernel, or the value if there is no kernel,
            such as "int8".
        weights: Number of weights of the kernel.
    """

    operation: str
    kernel: str | None
    tensor: str
    stored: str
    weights: int


class Counterpart(ABC):
    """A compressed model whose values are mapped to the original's operations.

    Attributes:
        places: The values that both models have, in topological order; the input comes first,
            unless it consists of tokens, the output last.
    """

    places: tuple[Place, ...]

    @abstractmethod
    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the compressed model's values: operation of a place → `(samples, …)` float32."""

    @abstractmethod
    def kernels(self) -> dict[str, np.ndarray]:
        """Return the compressed model's weights: kernel name → float32 of the kernel's shape."""

    def twin(self, im: InstrumentedModel) -> keras.Model:
        """Return a copy of the original with the compressed model's weights, in floating point.

        By default, which is meant for files, biases and normalisations are the original's, as
        normalisations may be folded into the kernels.
        """
        twin = copy_model(im.model)
        kernels = InstrumentedModel(twin).kernels
        for name, values in self.kernels().items():
            kernels[name].variable().assign(values)
        return twin


def input_places(im: InstrumentedModel, tensor: str, stored: str) -> list[Place]:
    """Return the place of a model's input; none for tokens, which are not rounded."""
    if im.graph.vocabulary(im.input_operation) is not None:
        return []
    return [Place(im.input_operation, None, tensor, stored, 0)]


def place_of(
    operation: str, kernel: str | None, tensor: str, stored: str, im: InstrumentedModel
) -> Place:
    """Return the place of an operation, with its kernel if it has one."""
    weights = im.kernels[kernel].size if kernel else 0
    return Place(operation, kernel, tensor, stored, weights)
