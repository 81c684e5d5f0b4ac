"""Data that the page needs for attention and recurrent layers: heads, and reads over time."""

from collections.abc import Mapping, Sequence
from typing import Any

from nnslicer_tf.instrument import Operation
from nnslicer_tf.instrument.operations import ProductSum, Softmax
from nnslicer_tf.instrument.recurrence import GATE, HELD, PRESENT, SEQUENCE, Gate, Member
from nnslicer_tf.kinds import kind_of

_RULES = {GATE: "gate", HELD: "held", "add": "add", "multiply": "multiply"}


def head_axes(operations: Sequence[Operation]) -> dict[str, int]:
    """Return the heads' axis of operations that have one: scores, probabilities, contexts.

    It is the axis, apart from the batch, that both factors of a product-sum and its result share.
    Operations computed from scores element by element, or row by row, have the same heads.

    Args:
        operations: All operations of a model, in topological order.

    Returns:
        Operation name → axis, not counting the batch; only for operations with three axes.
    """
    found: dict[str, int] = {}
    for operation in operations:
        if isinstance(operation.params, ProductSum):
            inputs, y = operation.params.equation.split("->")
            parts = dict(zip(operation.inputs, inputs.split(","), strict=True))
            common = [axis for axis in y[1:] if all(axis in part for part in parts.values())]
            for name, axes in {**parts, operation.name: y}.items():
                if len(common) == 1 and len(axes) == 4:
                    found[name] = axes.index(common[0]) - 1
    shapes = {operation.name: operation.shape for operation in operations}
    for operation in operations:
        alike = kind_of(operation).reach == "element" or isinstance(operation.params, Softmax)
        for source in operation.inputs:
            if alike and source in found and shapes[source] == operation.shape:
                found.setdefault(operation.name, found[source])
    for operation in operations:
        if operation.mask and len(shapes[operation.mask]) == 3 and operation.name in found:
            found.setdefault(operation.mask, found[operation.name])
    return found


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
    """Return what a recurrent layer's operation reads, at its own time step or the previous one.

    Args:
        operation: An operation; the result is empty if it is not in a recurrent layer.
        places: Operation name → place in the document.
        kernels: Kernel name → place in the document.
    """
    member = operation.params
    if not isinstance(member, Member):
        return {}
    own, unrolled = member.operation, member.unrolled
    prefix = operation.name.removesuffix(own.name)
    states = list(unrolled.states)
    reads = []
    for source in own.inputs:
        if source == PRESENT:
            continue
        if source == SEQUENCE:
            reads.append({"from": places[operation.inputs[0]], "entry": True})
            continue
        name = source.removesuffix("[t-1]")
        read = {"from": places[prefix + name], "before": name != source}
        given = operation.inputs[1 : len(operation.inputs) - unrolled.masked]
        if name != source and given:
            read["initial"] = places[given[states.index(name)]]
        reads.append(read)
    if isinstance(own.params, Gate):
        for read, weights in zip(reads, own.params.weights, strict=True):
            read |= {"kernel": kernels[weights.kernel.name], "first": weights.start}
    by_unit = len(operation.shape) == 2 and all(len(o.shape) == 1 for o in unrolled.cell)
    simple = "pass" if kind_of(own).one_to_one else "other"
    return {
        "rule": _RULES.get(own.kind, simple) if by_unit else "other",
        "reads": reads,
        "inputs": [read["from"] for read in reads],
        "entry": places[operation.inputs[0]],
        "backwards": unrolled.backwards,
        "present": places[operation.inputs[-1]] if unrolled.masked else None,
    }
