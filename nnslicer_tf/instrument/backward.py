"""The backward walk, from given operations to everything that they depend on.

Dynamic slices (by exclusion, or at θ = 0), DeepLIFT and back-propagation are this walk with
different rules. It works on NumPy arrays, without Keras, and on tensors.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops


def propagate(
    order: Iterable[Any],
    seed: Mapping[str, Any],
    rule: Callable[[Any, Any], Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Any]:
    """Propagate values backwards; return the values that each operation received.

    Each operation is expanded once, after its consumers, with the sum of the values that it
    received from them and from `seed`, `(batch, *shape)` by name. `order` lists consumers first;
    each has a `name` and the names of its `inputs`. `shapes` are without the batch axis.

    `rule` maps an operation and its values to one array for each of its inputs, of the input's
    shape or one that it was broadcast to, or None. A node with `members` represents several
    operations: the rule maps their values by name to a pair, the arrays for the inputs, and the
    final values of members that received more.
    """
    received = dict(seed)
    for node in order:
        if members := getattr(node, "members", ()):
            given = {name: received[name] for name in members if name in received}
            if not given:
                continue
            parts, totals = rule(node, given)
            received.update(totals)
        elif node.name in received:
            parts = rule(node, received[node.name])
        else:
            continue
        for source, part in zip(node.inputs, parts, strict=True):
            if part is None:
                continue
            part = _sum_to(part, shapes[source])
            if source not in received:
                received[source] = part
            elif isinstance(part, np.ndarray):
                dtype = _dtype_of_sum(received[source], part)
                received[source] = np.add(received[source], part, dtype=dtype)
            else:
                received[source] = received[source] + part
    return received


def _dtype_of_sum(*arrays: np.ndarray) -> np.dtype:
    """Return the dtype of a sum: int32 for int8 values, which hold single signs."""
    dtype = np.result_type(*arrays)
    return np.dtype(np.int32) if dtype == np.int8 else dtype


def _sum_to(values: Any, shape: tuple[int, ...]) -> Any:
    """Sum over broadcast axes, to shape `(batch, *shape)`."""
    have = tuple(values.shape[1:])
    # The size of a tensor's axis may be unknown (None) while a function is traced.
    if len(have) == len(shape) and all(a in (None, b) for a, b in zip(have, shape, strict=True)):
        return values
    lead = len(have) - len(shape)
    extents = enumerate(zip(have[lead:], shape, strict=True), 1 + lead)
    axes = (*range(1, 1 + lead), *(axis for axis, (n, wanted) in extents if n != wanted == 1))
    # In the dtype of the values; for booleans the sum is a logical "or".
    if isinstance(values, np.ndarray):
        return values.sum(axis=axes, dtype=_dtype_of_sum(values)).reshape(len(values), *shape)
    return ops.reshape(ops.sum(values, axis=axes), (-1, *shape))
