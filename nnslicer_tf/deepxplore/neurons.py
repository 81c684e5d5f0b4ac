"""The neurons of a model as DeepXplore counts them.

A filter is one neuron, whose output is the mean over its positions; a unit of a dense
layer is one neuron; a unit of a recurrent layer is one, whose output is the mean of its state over
the steps. All layers count except the input, masks and those that only move values, so
that LeNet-1, LeNet-4 and LeNet-5 have the paper's 52, 148 and 268 neurons. Padding is ignored.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.recurrence import RECURRENCE
from nnslicer_tf.kinds import aligned_mask

GRANULARITIES = ("channel", "activation")
_STATE = ":h"


class Neurons:
    """The neurons of a model.

    Args:
        im: The model.
        granularity: `"channel"`: one neuron per channel, the mean over its positions;
            `"activation"`: every element of an operation's output is a neuron.
        of: Names of operations; by default the output of every layer except the input and
            routing layers (the values before a fused activation do not count), and the states
            of recurrent layers.

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
        def counts(operation: Operation) -> bool:
            if operation.kind == RECURRENCE:
                return operation.name.endswith(_STATE)
            is_layer_output = operation.name.partition("#")[0] == operation.layer
            return is_layer_output and operation.kind not in ("input", "mask", "routing")

        check_name("granularity", granularity, GRANULARITIES)
        chosen = [o for o in im.operations if counts(o)] if of is None else [im[n] for n in of]
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

    def batches(
        self, x: DataLike, batch_size: int, progress: bool
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the values of the operations for batches of samples, NaN at padding.

        Args:
            x: Samples, in any form of `DataLike`.
            batch_size: Samples in one forward pass.
            progress: Show a progress bar.

        Raises:
            InvalidArgumentError, InputShapeError, NonFiniteActivationError: as in
                `InstrumentedModel.capture_batches`.
        """
        masks = {name: self.im[name].mask for name in self.names}
        wanted = [*self.names, *dict.fromkeys(mask for mask in masks.values() if mask)]
        for batch in self.im.capture_batches(x, batch_size, wanted, progress):
            values = {name: batch[name] for name in masks}
            for name, mask in masks.items():
                if mask is not None:
                    present = aligned_mask(batch[mask] > 0, values[name].ndim)
                    values[name] = np.where(present, values[name], np.float32(np.nan))
            yield values

    def reduce(self, values: np.ndarray) -> np.ndarray:
        """Return the neurons' outputs `(batch, *neurons)` of an operation's values.

        They are means over positions that are not NaN; NaN if there are none.
        """
        positions = self._positions(values)
        if not positions:
            return values
        means = values.mean(axis=positions, dtype=np.float64)
        if not np.isnan(means).any():
            return means
        counts = np.sum(~np.isnan(values), axis=positions)
        sums = np.nansum(values, axis=positions, dtype=np.float64)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

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
