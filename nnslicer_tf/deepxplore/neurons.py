"""The neurons of a model as DeepXplore counts them.

A filter is one neuron, whose output is the mean over its positions; a unit of a dense
layer is one neuron. All layers count but the input and those that only move values, so
that LeNet-1, LeNet-4 and LeNet-5 have the paper's 52, 148 and 268 neurons.
"""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from nnslicer_tf._names import check_name
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, Operation

GRANULARITIES = ("channel", "activation")


class Neurons:
    """The neurons of a model.

    Args:
        im: The model.
        granularity: `"channel"`: one neuron a channel, the mean over its positions;
            `"activation"`: every element of an operation's output is a neuron.
        of: Names of operations; by default the output of every layer but the input and
            routing layers (the values before a fused activation do not count).

    Attributes:
        im: The model.
        granularity: As given.
        shapes: Operation name → shape of its neurons: `(channels,)` or the operation's.

    Raises:
        InvalidArgumentError: for an unknown granularity or operation.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        granularity: str = "channel",
        of: Iterable[str] | None = None,
    ) -> None:
        check_name("granularity", granularity, GRANULARITIES)
        chosen = [o for o in im.operations if _counts(o)] if of is None else [im[n] for n in of]
        if not chosen:
            raise InvalidArgumentError("No operation is left whose neurons could be counted.")
        self.im = im
        self.granularity = granularity
        whole = granularity == "activation"
        self.shapes = {o.name: o.shape if whole else o.shape[-1:] for o in chosen}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operations, in order."""
        return tuple(self.shapes)

    @property
    def sizes(self) -> dict[str, int]:
        """Operation name → number of its neurons."""
        return {name: int(np.prod(shape)) for name, shape in self.shapes.items()}

    def __len__(self) -> int:
        return sum(self.sizes.values())

    def reduce(self, values: np.ndarray) -> np.ndarray:
        """Return the neurons' outputs `(batch, *neurons)` of an operation's values."""
        positions = self._positions(values)
        return values.mean(axis=positions, dtype=np.float64) if positions else values

    def vector(self, values: dict[str, Any]) -> Any:
        """Return all neurons' outputs as one tensor `(batch, neurons)`, differentiable.

        Args:
            values: Operation name → tensor of the backend `(batch, …)`.
        """
        parts = []
        for name, size in self.sizes.items():
            positions = self._positions(values[name])
            mean = keras.ops.mean(values[name], axis=positions) if positions else values[name]
            parts.append(keras.ops.reshape(mean, (-1, size)))
        return keras.ops.concatenate(parts, axis=1)

    def _positions(self, values: np.ndarray) -> tuple[int, ...]:
        """Return the axes to average over: those between the samples and the channels."""
        return () if self.granularity == "activation" else tuple(range(1, values.ndim - 1))


def _counts(operation: Operation) -> bool:
    is_layer_output = operation.name.partition("#")[0] == operation.layer
    return is_layer_output and operation.kind not in ("input", "routing")
