"""The structure of a model as the page shows it: groups of operations, heads, reads over time.

An operation is a *joint* if every path from the input to the output goes through it. The branches
between two joints, such as a residual block, are one group. Along a chain of joints, a weighted sum
forms a group with the normalisation and the activation that follow it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Any, NamedTuple

from nnslicer_tf.instrument import Operation
from nnslicer_tf.instrument.operations import ProductSum, Softmax
from nnslicer_tf.instrument.recurrence import GATE, HELD, PRESENT, SEQUENCE, Gate, Member
from nnslicer_tf.kinds import kind_of


class Group(NamedTuple):
    """Operations that are shown as one box: its text, and their names in topological order."""

    label: str
    members: tuple[str, ...]


def fold(operations: Sequence[Operation]) -> tuple[Group, ...]:
    """Return groups that contain every operation once, all in topological order."""
    # The last reader of each operation; connections of masks do not bypass anything.
    masks = {operation.name for operation in operations if operation.kind == "mask"}
    last_reader: dict[str, int] = {}
    for place, operation in enumerate(operations):
        last_reader |= dict.fromkeys(set(operation.inputs) - masks, place)

    blocks: list[list[Operation]] = []
    furthest, is_open = 0, False
    for place, operation in enumerate(operations):
        is_joint = furthest <= place
        kind = kind_of(operation)
        if is_open or (blocks and is_joint and (kind.one_to_one or kind.moves)):
            blocks[-1].append(operation)
        else:
            blocks.append([operation])
        is_open = not is_joint
        furthest = max(furthest, last_reader.get(operation.name, 0))

    # A block's label is the common prefix of its layers, or the first and the last of them.
    labels, ranges = [], []
    for block in blocks:
        names = [o.layer for o in block if o.synapses] or [o.layer for o in block]
        ranges.append(block[0].name if len(block) == 1 else f"{names[0]} … {names[-1]}")
        prefix = commonprefix(names).rstrip("_-/.# ")  # noqa: RUF071 - of letters
        labels.append(ranges[-1] if len(block) == 1 or len(prefix) <= 2 else prefix)
    counts = Counter(labels)
    return tuple(
        Group(whole if counts[label] > 1 else label, tuple(o.name for o in block))
        for label, whole, block in zip(labels, ranges, blocks, strict=True)
    )


def head_axes(operations: Sequence[Operation]) -> dict[str, int]:
    """Return the heads' axis, without the batch, of scores, probabilities and contexts by name.

    It is the axis, of three, that both factors of a product-sum and its result share. Operations
    computed from scores element by element, or row by row, have the same heads.
    """
    axes: dict[str, int] = {}
    for operation in operations:
        if isinstance(operation.params, ProductSum):
            inputs, y = operation.params.equation.split("->")
            terms = dict(zip(operation.inputs, inputs.split(","), strict=True))
            common = [letter for letter in y[1:] if all(letter in t for t in terms.values())]
            for name, letters in {**terms, operation.name: y}.items():
                if len(common) == 1 and len(letters) == 4:
                    axes[name] = letters.index(common[0]) - 1
    shapes = {operation.name: operation.shape for operation in operations}
    for operation in operations:
        alike = kind_of(operation).reach == "element" or isinstance(operation.params, Softmax)
        for source in operation.inputs:
            if alike and source in axes and shapes[source] == operation.shape:
                axes.setdefault(operation.name, axes[source])
    for operation in operations:
        if operation.mask and len(shapes[operation.mask]) == 3 and operation.name in axes:
            axes.setdefault(operation.mask, axes[operation.name])
    return axes


def product_facts(operation: Operation) -> dict[str, Any]:
    """Return how the values of a product-sum or a softmax depend on its inputs."""
    params = operation.params
    if isinstance(params, ProductSum):
        return {"rule": "products", "equation": params.equation}
    if isinstance(params, Softmax) and operation.kind == "softmax":
        rank = len(operation.shape) + 1
        return {"rule": "softmax", "axes": [axis % rank - 1 for axis in params.axes]}
    return {}


def through_time(
    operation: Operation, places: Mapping[str, int], kernels: Mapping[str, int]
) -> dict[str, Any]:
    """Return what a recurrent layer's operation reads at a time step, as indices; else nothing."""
    member = operation.params
    if not isinstance(member, Member):
        return {}
    inner, unrolled = member.operation, member.unrolled
    prefix = operation.name.removesuffix(inner.name)
    initial = operation.inputs[1 : len(operation.inputs) - unrolled.masked]
    reads = []
    for source in inner.inputs:
        if source == PRESENT:
            continue
        if source == SEQUENCE:
            reads.append({"from": places[operation.inputs[0]], "entry": True})
            continue
        name = source.removesuffix("[t-1]")
        read = {"from": places[prefix + name], "before": name != source}
        if name != source and initial:
            read["initial"] = places[initial[list(unrolled.states).index(name)]]
        reads.append(read)
    if isinstance(inner.params, Gate):
        for read, weights in zip(reads, inner.params.weights, strict=True):
            read |= {"kernel": kernels[weights.kernel.name], "first": weights.start}
    rules = {GATE: "gate", HELD: "held", "add": "add", "multiply": "multiply"}
    by_unit = len(operation.shape) == 2 and all(len(o.shape) == 1 for o in unrolled.cell)
    simple = "pass" if kind_of(inner).one_to_one else "other"
    return {
        "rule": rules.get(inner.kind, simple) if by_unit else "other",
        "reads": reads,
        "inputs": [read["from"] for read in reads],
        "entry": places[operation.inputs[0]],
        "backwards": unrolled.backwards,
        "present": places[operation.inputs[-1]] if unrolled.masked else None,
    }
