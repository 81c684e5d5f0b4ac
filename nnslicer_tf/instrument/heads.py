"""Heads of attention, found in the graph: a softmax over keys between two sums of products.

Probabilities have the shape (heads…, queries, keys), so every axis before the last two counts
heads. The letters of the two products' equations say where these axes are in queries, keys, values
and contexts. Keras's layers, KerasHub's and those that users write are thus treated alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnslicer_tf.instrument.operations import Operation, ProductSum, Softmax


@dataclass(frozen=True)
class Heads:
    """How an operation's elements belong to the heads of an attention.

    Attributes:
        attention: Name of the attention's context, the operation whose heads are independent parts
            of its result: the same for all operations of one attention.
        role: "query", "key", "value", "scores", "probabilities" or "context".
        axes: Axes of the operation's shape, the batch not counted, whose row-major index is the
            head. Grouped queries have two: of the groups, and of a group's queries.
        count: Number of heads. Keys and values of grouped queries have fewer than the context.
    """

    attention: str
    role: str
    axes: tuple[int, ...]
    count: int

    def members(self, shape: Sequence[int], head: int) -> np.ndarray:
        """Return which elements of an operation's shape belong to a head, bool of that shape."""
        extents = [shape[axis] for axis in self.axes]
        index: Any = [slice(None)] * len(shape)
        for axis, i in zip(self.axes, np.unravel_index(head, extents), strict=True):
            index[axis] = i
        members = np.zeros(tuple(shape), bool)
        members[tuple(index)] = True
        return members


def find_heads(
    operations: Mapping[str, Operation], consumers: Mapping[str, Sequence[Operation]]
) -> dict[str, Operation]:
    """Return the operations of all attentions with heads, by name, with `heads` set."""
    found: dict[str, Operation] = {}

    def mark(name: str, attention: str, role: str, axes: Sequence[int]) -> None:
        operation = operations[name]
        if axes and name not in found:
            count = int(np.prod([operation.shape[axis] for axis in axes]))
            found[name] = replace(operation, heads=Heads(attention, role, tuple(axes), count))

    for probabilities in operations.values():
        rank = len(probabilities.shape)
        params = probabilities.params
        if not isinstance(params, Softmax) or rank < 3 or params.axes not in ((-1,), (rank,)):
            continue
        # The contexts: products with values, summed over the keys
        value: Operation | None = probabilities
        context = None
        while value is not None and context is None:
            after = [o for o in consumers[value.name] if o.kind != "mask"]
            context = next((o for o in after if isinstance(o.params, ProductSum)), None)
            if context is None:  # such as dropout
                same = (o for o in after if o.shape == probabilities.shape and len(after) == 1)
                value = next(same, None)
        if context is None or value is None:
            continue
        place = context.inputs.index(value.name)
        letters, y = _letters(context)
        heads, keys = letters[place][1:-2], letters[place][-1]
        if keys in y or keys not in letters[1 - place]:
            continue
        mark(context.name, context.name, "context", _places(heads, y))
        mark(probabilities.name, context.name, "probabilities", range(rank - 2))
        mark(context.inputs[1 - place], context.name, "value", _places(heads, letters[1 - place]))

        # The scores: products of queries and keys, before a scale, a bias and a mask
        scores: Operation | None = operations[probabilities.inputs[0]]
        while scores is not None and not isinstance(scores.params, ProductSum):
            before = (operations[name] for name in scores.inputs)
            same = (o for o in before if o.shape == probabilities.shape and o.kind != "mask")
            scores = next(same, None)
        if scores is None:
            continue
        letters, y = _letters(scores)
        mark(scores.name, context.name, "scores", range(rank - 2))
        for name, part in zip(scores.inputs, letters, strict=True):
            role = "query" if y[-2] in part else "key"
            mark(name, context.name, role, _places(y[1:-2], part))
    return found


def _letters(operation: Operation) -> tuple[list[str], str]:
    """Return the letters of a product's inputs and of its output, batch first."""
    inputs, _, output = operation.params.equation.partition("->")
    return inputs.split(","), output


def _places(letters: str, of: str) -> list[int]:
    """Return the axes, the batch not counted, of those letters that a tensor has."""
    return [of.index(letter) - 1 for letter in letters if letter in of]
