"""Folding of a graph of operations into groups, each shown as one box in a picture.

An operation is a *joint* if every path from the input to the output goes through it. Between two
joints lies a block with branches, such as a residual block, which is one group. Along a chain of
joints, a weighted sum forms a group with the normalisation and the activation that follow it.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nnslicer_tf.instrument import Operation
from nnslicer_tf.kinds import kind_of


@dataclass(frozen=True)
class Group:
    """Operations that are shown as one box.

    Attributes:
        label: Text in the box.
        members: Names of the operations, in topological order.
    """

    label: str
    members: tuple[str, ...]


def fold(operations: Sequence[Operation]) -> tuple[Group, ...]:
    """Return groups that contain every operation once, in topological order.

    Args:
        operations: All operations of a model, in topological order.
    """
    blocks: list[list[Operation]] = []
    is_joint = _joints(operations)
    open_block = False
    for operation, joint in zip(operations, is_joint, strict=True):
        if open_block or (blocks and joint and _follows(operation)):
            blocks[-1].append(operation)
        else:
            blocks.append([operation])
        open_block = not joint
    labels = [_label(block) for block in blocks]
    repeated = {label for label, count in Counter(labels).items() if count > 1}
    return tuple(
        Group(_range(block) if label in repeated else label, tuple(o.name for o in block))
        for label, block in zip(labels, blocks, strict=True)
    )


def _joints(operations: Sequence[Operation]) -> list[bool]:
    """Mark the operations that no connection bypasses; connections of masks are ignored."""
    masks = {operation.name for operation in operations if operation.kind == "mask"}
    places = {operation.name: place for place, operation in enumerate(operations)}
    furthest = 0  # the last reader of anything before the operation
    readers = dict.fromkeys(places, 0)
    for operation in operations:
        for source in set(operation.inputs) - masks:
            readers[source] = max(readers[source], places[operation.name])
    joints = []
    for place, operation in enumerate(operations):
        joints.append(furthest <= place)
        furthest = max(furthest, readers[operation.name])
    return joints


def _follows(operation: Operation) -> bool:
    """Return whether an operation belongs to the previous one."""
    kind = kind_of(operation)
    return kind.one_to_one or kind.move is not None


def _label(block: Sequence[Operation]) -> str:
    """Return the common prefix of the names of a block's layers, or its first layer."""
    if len(block) == 1:
        return block[0].name
    summing = _layers(block)
    columns = itertools.takewhile(
        lambda letters: len(set(letters)) == 1, zip(*summing, strict=False)
    )
    label = "".join(letters[0] for letters in columns).rstrip("_-/.# ")
    return label if len(label) > 2 else _range(block)


def _range(block: Sequence[Operation]) -> str:
    """Return a block's first and last layer, for blocks without a unique common prefix."""
    if len(block) == 1:
        return block[0].name
    layers = _layers(block)
    return f"{layers[0]} … {layers[-1]}"


def _layers(block: Sequence[Operation]) -> list[str]:
    return [o.layer for o in block if o.synapses] or [o.layer for o in block]
