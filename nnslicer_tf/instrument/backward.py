"""The one backward walk: from some operations to all that they depend on.

Dynamic slices (by exclusion, or at θ = 0), effective paths, DeepLIFT and gradients are this
walk with another rule. It works on NumPy arrays and on tensors alike, and needs no Keras.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from nnslicer_tf._lazy import LazyModule

ops: Any = LazyModule("keras.ops")


class Expandable(Protocol):
    """What the walk needs of an operation."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the operations that it takes."""


Node = TypeVar("Node", bound=Expandable)


def propagate(
    order: Iterable[Node],
    seed: Mapping[str, Any],
    rule: Callable[[Node, Any], Sequence[Any]],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Any]:
    """Propagate values backwards; return what every operation received.

    Each operation is expanded once, after all its consumers, with the sum of what these
    gave it; operations that received nothing are passed over.

    Args:
        order: The operations to expand, consumers first.
        seed: Operation name → `(batch, *shape)`, where the walk starts.
        rule: From an operation and what it received to one value for each of its inputs,
            of the input's shape, or of a shape that the input was broadcast to.
        shapes: Operation name → its shape without the batch axis.

    Returns:
        Operation name → `(batch, *shape)`, the seed included.
    """
    received = dict(seed)
    for node in order:
        if node.name not in received:
            continue
        parts = rule(node, received[node.name])
        for source, part in zip(node.inputs, parts, strict=True):
            part = _sum_to(part, shapes[source])
            received[source] = received[source] + part if source in received else part
    return received


def _sum_to(values: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the axes that were broadcast, so that the result has `(batch, *shape)`."""
    have = tuple(values.shape[1:])
    # On tensors an extent may be unknown (None) while a function is traced.
    if len(have) == len(shape) and all(a in (None, b) for a, b in zip(have, shape, strict=True)):
        return values
    lead = len(values.shape) - 1 - len(shape)
    if lead:
        values = _sum(values, tuple(range(1, 1 + lead)), keepdims=False)
    stretched = tuple(
        axis + 1
        for axis, (have, want) in enumerate(zip(values.shape[1:], shape, strict=True))
        if want == 1 and have != 1
    )
    return _sum(values, stretched, keepdims=True) if stretched else values


def _sum(values: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """Sum in the dtype of the values; for booleans that is "any"."""
    if isinstance(values, np.ndarray):
        return values.sum(axis=axes, keepdims=keepdims).astype(values.dtype)
    return ops.sum(values, axis=axes, keepdims=keepdims)
