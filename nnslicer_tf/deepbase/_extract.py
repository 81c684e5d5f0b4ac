"""Behaviours of units, from one forward pass for everything needed from a model.

Means over positions are computed where the model runs, so that whole activations are transferred
only if behaviours per position are requested. Padding is excluded from the means.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from nnslicer_tf._files import digest
from nnslicer_tf.deepbase.cache import BehaviourCache
from nnslicer_tf.errors import NonFiniteActivationError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.inputs import Inputs, arrays_of
from nnslicer_tf.kinds import aligned_mask


@dataclass(frozen=True)
class Need:
    """A request for an operation's behaviours: one per record, or one for every position.

    Attributes:
        operation: Its name.
        by_position: Whether behaviours are requested for every position.
    """

    operation: str
    by_position: bool


class Extractor:
    """Computes behaviours of one model, block by block.

    Args:
        im: The model.
        needs: All behaviours that calls may need.
        cache: Where behaviours are kept, or None.

    Attributes:
        passes: Number of forward passes so far.
    """

    def __init__(
        self, im: InstrumentedModel, needs: Sequence[Need], cache: BehaviourCache | None
    ) -> None:
        self.passes = 0
        self._im = im
        self._cache = cache
        self._fingerprint = im.fingerprint if cache is not None else ""
        self._compile(needs)

    def __call__(
        self, x: np.ndarray | Inputs, needs: Sequence[Need], rows: np.ndarray
    ) -> dict[Need, np.ndarray]:
        """Return behaviours `(records, positions, channels)` float32 of a block.

        Args:
            x: The records `(records, *input_shape)` float32; `Inputs` for several inputs.
            needs: What to compute, among the needs that the extractor was made for.
            rows: Indices of the records in the data set, for messages.

        Raises:
            NonFiniteActivationError: if a behaviour is NaN or infinite.
        """
        if self._cache is None:
            return self._run(x, needs, rows)
        block = digest(arrays_of(x))
        keys = {need: self._key(need, block) for need in needs}
        cached = {need: self._cache.get(key) for need, key in keys.items()}
        kept = {need: values for need, values in cached.items() if values is not None}
        missing = [need for need in needs if need not in kept]
        if missing:
            for need, values in self._run(x, missing, rows).items():
                kept[need] = values
                self._cache.put(keys[need], values)
        return kept

    def _run(
        self, x: np.ndarray | Inputs, needs: Sequence[Need], rows: np.ndarray
    ) -> dict[Need, np.ndarray]:
        # Recompiling takes seconds, so it is done only when much of the pass is no longer needed.
        much_less = self.passes and len(needs) <= len(self._needs) // 2
        if much_less or not set(needs) <= set(self._needs):
            self._compile(needs)
        self.passes += 1
        tensors = self._compute([keras.ops.convert_to_tensor(array) for array in arrays_of(x)])
        found = dict(zip(self._needs, map(keras.ops.convert_to_numpy, tensors), strict=True))
        for need in needs:
            if not np.isfinite(found[need]).all():
                finite = np.isfinite(found[need]).all(axis=(1, 2))
                raise NonFiniteActivationError(
                    f"Operation '{need.operation}' of '{self._im.model.name}' gives NaN or "
                    f"infinite values for record {rows[finite.argmin()]}."
                )
        return {need: found[need] for need in needs}

    def _compile(self, needs: Sequence[Need]) -> None:
        self._needs = tuple(needs)
        self._compute: Callable = compiled_function(_behaviours(self._im, self._needs))

    def _key(self, need: Need, block: str) -> str:
        text = f"{self._fingerprint} {need.operation} {need.by_position} {block}"
        if _mask_of(self._im, need):  # means in older caches include the padding
            text += " without padding"
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _behaviours(im: InstrumentedModel, needs: Sequence[Need]) -> Callable[[Any], list[Any]]:
    """Return the function that maps a batch to the behaviours of all needs."""
    masks = {need: _mask_of(im, need) for need in needs}
    wanted = {need.operation for need in needs} | {mask for mask in masks.values() if mask}

    def compute(x: Any) -> list[Any]:
        values = im.compute(x, wanted)
        return [
            _reduce(values[need.operation], need.by_position, values[mask] if mask else None)
            for need, mask in masks.items()
        ]

    return compute


def _mask_of(im: InstrumentedModel, need: Need) -> str | None:
    """Return the operation that marks padding, if padding is to be excluded."""
    return None if need.by_position else im[need.operation].mask


def _reduce(values: Any, by_position: bool, mask: Any | None) -> Any:
    """Return behaviours `(records, positions, channels)`; an empty mean is 0."""
    rows = _rows(values)
    if by_position:
        return rows
    if mask is None:
        return keras.ops.mean(rows, axis=1, keepdims=True)
    present = aligned_mask(mask, len(values.shape)) > 0
    kept = _rows(keras.ops.where(present, values, 0.0))
    counts = _rows(keras.ops.where(present, keras.ops.ones_like(values), 0.0))
    sums, counts = (keras.ops.sum(part, axis=1, keepdims=True) for part in (kept, counts))
    return sums / keras.ops.maximum(counts, 1.0)


def _rows(values: Any) -> Any:
    """Return an operation's values as `(records, positions, channels)`."""
    return keras.ops.reshape(values, (-1, int(np.prod(values.shape[1:-1])), values.shape[-1]))
