"""Planning of a walk from an instrumented model, its profile and a criterion."""

from collections.abc import Mapping, Sequence

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.kinds import Layout, Node, kind_of
from nnslicer_tf.kinds.recurrence import recurrence_node
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing.criterion import ResolvedCriterion
from nnslicer_tf.slicing.profile import Profile

GRANULARITIES = ("activation", "channel")
RELATIVE_TO = ("output", "sum")
RECTIFY = ("sign", "pass")
PRODUCT = ("value", "midpoint")
CONTRIBUTION = ("count", "amount")


def plan_walk(
    im: InstrumentedModel,
    profile: Profile,
    criterion: ResolvedCriterion,
    theta: float,
    granularity: str,
    relative_to: str,
    rectify: str,
    product: str,
    contribution: str = "count",
) -> Plan:
    """Return the plan of the walk of `criterion` through the model."""
    start = criterion.start
    starts = [criterion.logits] if start.predicted else start.neurons
    ancestors = im.graph.ancestors(starts, first=criterion.last)
    expanded = [o for o in reversed(ancestors) if o.name not in im.input_operations]
    layout = Layout(granularity, profile.means)
    nodes = {o.name: _node(o, layout) for o in im.operations}
    needed = {criterion.logits}
    order = _order(expanded, nodes)
    for node in order:
        if node.kind.move is None:
            needed.update((*(node.members or (node.name,)), *node.inputs))
    walked = (*starts, *(name for node in order for name in (*node.inputs, *node.members)))
    needed.update(mask for name in walked if (mask := im[name].mask) is not None)
    return Plan(
        nodes=nodes,
        expanded=order,
        captured=tuple(o.name for o in im.operations if o.name in needed),
        start=start,
        logits=criterion.logits,
        theta=theta,
        granularity=granularity,
        relative_to=relative_to,
        rectify=rectify,
        product=product,
        contribution=contribution,
        kernels={name: kernel.layout for name, kernel in im.kernels.items()},
    )


def _order(expanded: Sequence[Operation], nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    """Return the nodes in the order of the walk; a recurrent layer is a single node."""
    order: list[Node] = []
    walked: set[str] = set()
    for operation in expanded:
        if operation.name in walked:
            continue
        through_time = kind_of(operation).through_time
        node = recurrence_node(operation) if through_time else nodes[operation.name]
        walked.update(node.members)
        order.append(node)
    return tuple(order)


def check_rules(im: InstrumentedModel, granularity: str) -> None:
    """Check that all operations of a model have a rule.

    Raises:
        UnsupportedLayerError: if an operation is of an unknown kind, or if the granularity is
            "channel" and a layer is recurrent.
    """
    for operation in im.operations:
        if granularity == "channel" and kind_of(operation).through_time:
            raise UnsupportedLayerError(
                f"Layer '{operation.layer}' is recurrent: each time depends on the one before, so "
                "that means over times are no neurons. Take granularity='activation'."
            )
    for operation in im.operations:
        if operation.inputs and not kind_of(operation).can_slice:
            layer = type(operation.keras_layer).__name__
            raise UnsupportedLayerError(
                f"Operation '{operation.name}' ({layer}) is of kind '{operation.kind}', which has "
                f"no rule. Register one with nnslicer_tf.register_rule('{operation.kind}', rule)."
            )


def _node(operation: Operation, layout: Layout) -> Node:
    kind = kind_of(operation)
    return Node(
        name=operation.name,
        kind=kind,
        inputs=operation.inputs,
        shape=layout.shape(operation.shape),
        mean=layout.mean(operation.name),
        table=kind.table(operation, layout),
        mask=operation.mask,
    )
