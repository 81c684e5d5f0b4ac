"""Selection of the units to inspect: which channels of which operations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from nnslicer_tf._checks import did_you_mean
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, Operation


@dataclass(frozen=True)
class Units:
    """Some channels of the operations whose names match a pattern.

    Attributes:
        pattern: An operation's name, with `*` and `?` as in file names.
        indices: Channels (units of a dense layer); all by default.
        name: The group's name in the result, by default the operation's. Only for a pattern
            that matches a single operation.
    """

    pattern: str
    indices: Sequence[int] | None = None
    name: str | None = None


@dataclass(frozen=True)
class UnitGroup:
    """The inspected channels of one operation of one model.

    Attributes:
        name: Name in the result.
        operation: Name of the operation.
        positions: Shape of the operation without its channels; `()` for a dense layer.
        indices: The channels, `(units,)`.
    """

    name: str
    operation: str
    positions: tuple[int, ...]
    indices: np.ndarray


def find_groups(
    im: InstrumentedModel, units: str | Units | Iterable[str | Units]
) -> list[UnitGroup]:
    """Return the groups of a model's units that match, in the order of `units`.

    Raises:
        InvalidArgumentError: if a pattern matches nothing (the message lists similar names), a
            channel does not exist, or two groups have the same name.
    """
    given = [units] if isinstance(units, (str, Units)) else units
    chosen = [Units(unit) if isinstance(unit, str) else unit for unit in given]
    groups = [_group(unit, operation) for unit in chosen for operation in _matching(im, unit)]
    names = [group.name for group in groups]
    twice = {name for name in names if names.count(name) > 1}
    if twice or not groups:
        raise InvalidArgumentError(
            f"Groups of units must have different names. Received: {sorted(twice)} more than "
            "once. Give names of your own: Units(pattern, indices, name)."
            if twice
            else "There are no units to inspect."
        )
    return groups


def _matching(im: InstrumentedModel, units: Units) -> list[Operation]:
    """Return the operations that match; a pattern with `*` skips input, routing and masks."""
    is_pattern = "*" in units.pattern or "?" in units.pattern
    found = [
        operation
        for operation in im.operations
        if fnmatchcase(operation.name, units.pattern)
        and not (is_pattern and operation.kind in ("input", "routing", "mask"))
    ]
    if not found:
        names = (operation.name for operation in im.operations)
        hint = did_you_mean(units.pattern.replace("*", ""), names)
        raise InvalidArgumentError(
            f"No operation of model '{im.model.name}' matches {units.pattern!r}.{hint}"
        )
    return found


def _group(units: Units, operation: Operation) -> UnitGroup:
    channels = operation.shape[-1]
    indices = np.arange(channels) if units.indices is None else np.asarray(units.indices)
    if indices.ndim != 1 or not len(indices) or indices.dtype.kind not in "iu":
        raise InvalidArgumentError(f"indices must be a list of channels. Received: {units!r}")
    if indices.min() < 0 or indices.max() >= channels:
        raise InvalidArgumentError(
            f"Operation '{operation.name}' has channels 0 … {channels - 1}. Received: "
            f"{units.indices!r}"
        )
    name = units.name or operation.name
    return UnitGroup(name, operation.name, operation.shape[:-1], indices)
