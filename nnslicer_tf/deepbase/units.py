"""The units to inspect, and their behaviours: the values of channels of operations.

Means over positions exclude padding, and are computed where the model runs.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import did_you_mean
from nnslicer_tf._files import digest
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, NonFiniteActivationError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.inputs import Inputs, arrays_of
from nnslicer_tf.kinds.kind import aligned_mask

Need = tuple[str, bool]
"""Name of an operation, and whether its behaviours are needed at every position or as means."""


@dataclass(frozen=True)
class Units:
    """Some channels of the operations whose names match a pattern.

    Attributes:
        pattern: An operation's name, with `*` and `?` as in file names, which match neither inputs
            and their preprocessing nor masks and what only moves values.
        indices: Channels (units of a dense layer); all by default.
        name: The group's name, by default the operation's; for a pattern of one operation.
    """

    pattern: str
    indices: Sequence[int] | None = None
    name: str | None = None


@dataclass(frozen=True)
class UnitGroup:
    """The inspected channels of one operation of one model."""

    name: str  # in the result
    operation: str
    positions: tuple[int, ...]  # shape of the operation without its channels
    indices: np.ndarray  # the channels


def find_groups(
    im: InstrumentedModel, units: str | Units | Iterable[str | Units]
) -> list[UnitGroup]:
    """Return the groups of a model's units that match, in the order of `units`."""
    groups: list[UnitGroup] = []
    for choice in [units] if isinstance(units, (str, Units)) else units:
        chosen = Units(choice) if isinstance(choice, str) else choice
        operations = [o for o in im.operations if fnmatchcase(o.name, chosen.pattern)]
        if "*" in chosen.pattern or "?" in chosen.pattern:
            operations = [o for o in operations if o.kind not in ("routing", "mask")]
            operations = [o for o in operations if o.name not in im.preprocessing]
        if not operations:
            known = (operation.name for operation in im.operations)
            hint = did_you_mean(chosen.pattern.replace("*", ""), known)
            raise InvalidArgumentError(
                f"No operation of model '{im.model.name}' matches {chosen.pattern!r}.{hint}"
            )
        for operation in operations:
            channels = (operation.shape or (1,))[-1]  # a single value is a channel
            indices = np.arange(channels) if chosen.indices is None else np.asarray(chosen.indices)
            if indices.ndim != 1 or not len(indices) or indices.dtype.kind not in "iu":
                raise InvalidArgumentError(f"indices must list channels. Received: {chosen!r}")
            if indices.min() < 0 or indices.max() >= channels:
                raise InvalidArgumentError(
                    f"'{operation.name}' has channels 0 … {channels - 1}, not {chosen.indices!r}"
                )
            name = chosen.name or operation.name
            groups.append(UnitGroup(name, operation.name, operation.shape[:-1], indices))
    if not groups:
        raise InvalidArgumentError("There are no units to inspect.")
    names = [group.name for group in groups]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgumentError(
            f"Groups of units must have different names. Received: {repeated} more than once. "
            "Name them: Units(pattern, indices, name)."
        )
    return groups


class Extractor:
    """Computes one model's behaviours, block by block, with one forward pass for all `needs`."""

    def __init__(self, im: InstrumentedModel, needs: Iterable[Need], cache: Store | None) -> None:
        self.passes = 0
        self._im, self._cache = im, cache
        self._model = im.identity if cache is not None else ""
        # The operation that marks padding, where it is excluded: from means.
        self._masks = {need: None if need[1] else im[need[0]].mask for need in needs}
        self._compute: Callable = compiled_function(self._behaviours)

    def __call__(
        self, x: np.ndarray | Inputs, needs: Sequence[Need], rows: np.ndarray
    ) -> dict[Need, np.ndarray]:
        """Return behaviours `(records, positions, channels)` float32; `rows` are for messages."""
        if self._cache is None:
            return self._run(x, needs, rows)
        block = f"{self._model} {{}} {{}} {digest(arrays_of(x))}"
        behaviours, keys = {}, {}
        for need in needs:
            # Means in older caches include the padding.
            text = block.format(*need) + (" without padding" if self._masks[need] else "")
            keys[need] = hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
            # A damaged file counts as missing.
            with (
                suppress(FileNotFoundError, CorruptFileError),
                self._cache.open(keys[need]) as file,
            ):
                behaviours[need] = file.array("values", np.generic, finite=False)
        missing = [need for need in needs if need not in behaviours]
        if missing:
            for need, values in self._run(x, missing, rows).items():
                behaviours[need] = values
                self._cache.save(keys[need], {}, {"values": values})
        return behaviours

    def _run(
        self, x: np.ndarray | Inputs, needs: Sequence[Need], rows: np.ndarray
    ) -> dict[Need, np.ndarray]:
        self.passes += 1
        tensors = self._compute([keras.ops.convert_to_tensor(array) for array in arrays_of(x)])
        computed = dict(zip(self._masks, tensors, strict=True))
        values = {need: keras.ops.convert_to_numpy(computed[need]) for need in needs}
        for need in needs:
            finite = np.isfinite(values[need]).all(axis=(1, 2))
            if not finite.all():
                raise NonFiniteActivationError(
                    f"Operation '{need[0]}' of '{self._im.model.name}' gives NaN or "
                    f"infinite values for record {rows[finite.argmin()]}."
                )
        return values

    def _behaviours(self, x: Any) -> list[Any]:
        """Return the behaviours that each need asks for, tensors."""
        operations = {name for name, _ in self._masks} | set(filter(None, self._masks.values()))
        values = self._im.compute(x, operations)
        behaviours = []
        for (name, by_position), mask in self._masks.items():
            of = values[name]
            # As (records, positions, channels).
            inner = tuple(of.shape[1:]) or (1,)
            shape = (-1, int(np.prod(inner[:-1])), inner[-1])
            rows = keras.ops.reshape(of, shape)
            if mask:
                present = aligned_mask(values[mask], len(of.shape)) > 0
                present = keras.ops.where(present, keras.ops.ones_like(of), 0.0)
                present = keras.ops.reshape(present, shape)
                rows = keras.ops.where(present > 0, rows, 0.0)
                sums, counts = (keras.ops.sum(p, axis=1, keepdims=True) for p in (rows, present))
                rows = sums / keras.ops.maximum(counts, 1.0)  # an empty mean is 0
            elif not by_position:
                rows = keras.ops.mean(rows, axis=1, keepdims=True)
            behaviours.append(rows)
        return behaviours
