"""Planning of a walk from an instrumented model, its profile and a criterion."""

from collections.abc import Mapping, Sequence

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.recurrence import GATE, HELD, Member
from nnslicer_tf.kinds import Layout, Node, kind_of
from nnslicer_tf.kinds.amounts import data_of, needs_slopes
from nnslicer_tf.kinds.recurrence import recurrence_node
from nnslicer_tf.slicing._plan import AmountTables, Plan
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
    contribution: str,
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
    amounts = None
    if contribution == "amount" and theta > 0:
        amounts = _amount_tables(im, expanded, Layout("activation", profile.means))
        for node in order:
            needed.update((*(node.members or (node.name,)), *node.inputs))
    return Plan(
        amounts=amounts,
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


def _amount_tables(
    im: InstrumentedModel, expanded: Sequence[Operation], layout: Layout
) -> AmountTables:
    """Return what a walk with amounts needs to exclude inputs of some operations."""
    data, slopes = {}, []
    layers = {o.params.unrolled for o in expanded if isinstance(o.params, Member)}
    through_time = [
        o for o in im.operations if isinstance(o.params, Member) and o.params.unrolled in layers
    ]
    for operation in {*expanded, *through_time}:
        inner = operation
        if isinstance(operation.params, Member):
            inner = operation.params.operation
            if inner.kind in (GATE, HELD):
                continue
        if kind_of(inner).move is None:
            data[operation.name] = data_of(inner)
        if needs_slopes(inner):
            slopes.append(operation.name)
    lookups = [name for o in expanded if o.kind == "lookup" for name in o.inputs]
    return AmountTables(
        nodes={o.name: _node(o, layout) for o in im.operations},
        data=data,
        tokens=frozenset(o.name for o in im.graph.ancestors(lookups)),
        slopes=tuple(slopes),
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
                "no rule. Register one with "
                f"nnslicer_tf.kinds.register_rule('{operation.kind}', rule)."
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
