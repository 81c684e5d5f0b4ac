"""Planning of a walk from an instrumented model, its profile and a criterion."""

from typing import Any

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.recurrence import GATE, HELD, Member
from nnslicer_tf.kinds import Node, kind_of
from nnslicer_tf.kinds.amounts import data_of, needs_slopes
from nnslicer_tf.kinds.check import check_amounts
from nnslicer_tf.kinds.kind import Layout
from nnslicer_tf.kinds.recurrence import recurrence_node
from nnslicer_tf.slicing._plan import AmountTables, Plan
from nnslicer_tf.slicing.criterion import ResolvedCriterion
from nnslicer_tf.slicing.profile import Profile


def plan_walk(
    im: InstrumentedModel, profile: Profile, criterion: ResolvedCriterion, **settings: Any
) -> Plan:
    """Plan the walk of a criterion; `settings` are the attributes of `Plan` with the same names."""
    start = criterion.start
    starts = [criterion.logits] if start.predicted else list(start.neurons)
    ancestors = im.graph.ancestors(starts, first=criterion.last)
    expanded = [o for o in reversed(ancestors) if o.name not in im.input_operations]

    # The nodes in the order of the walk; a recurrent layer is a single node.
    nodes = _nodes(im, profile, settings["granularity"])
    order: list[Node] = []
    in_order: set[str] = set()
    for operation in expanded:
        if operation.name not in in_order:
            node = nodes[operation.name]
            if node.kind.through_time:
                node = recurrence_node(operation)
            in_order.update(node.members)
            order.append(node)

    # Operations that only move values are not captured, unless amounts need their reference.
    with_tables = settings["contribution"] == "amount" and settings["theta"] > 0
    captured = {criterion.logits}
    for node in order:
        if with_tables or node.kind.move is None:
            captured.update((*(node.members or (node.name,)), *node.inputs))
    walked = (*starts, *(name for node in order for name in (*node.inputs, *node.members)))
    captured.update(mask for name in walked if (mask := im[name].mask) is not None)

    amounts = None
    if with_tables:
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
        tokens = frozenset(o.name for o in im.graph.ancestors(lookups))
        amounts = AmountTables(_nodes(im, profile, "activation"), data, tokens, tuple(slopes))
    return Plan(
        nodes=nodes,
        expanded=tuple(order),
        captured=tuple(o.name for o in im.operations if o.name in captured),
        start=start,
        logits=criterion.logits,
        kernels={name: kernel.layout for name, kernel in im.kernels.items()},
        amounts=amounts,
        **settings,
    )


def check_rules(im: InstrumentedModel, granularity: str) -> None:
    """Raise UnsupportedLayerError if an operation has no rule, or one that does not add up."""
    for operation in im.operations:
        if granularity == "channel" and kind_of(operation).through_time:
            raise UnsupportedLayerError(
                f"Layer '{operation.layer}' is recurrent: a mean over time steps is not a neuron. "
                "Use granularity='activation'."
            )
    for operation in im.operations:
        if operation.inputs and not kind_of(operation).can_slice:
            layer = type(operation.keras_layer).__name__
            raise UnsupportedLayerError(
                f"Operation '{operation.name}' ({layer}) is of kind '{operation.kind}', which has "
                "no rule. Register one with "
                f"nnslicer_tf.kinds.register_rule('{operation.kind}', rule)."
            )
    im.prepared("contributions add up", lambda: check_amounts(im))


def _nodes(im: InstrumentedModel, profile: Profile, granularity: str) -> dict[str, Node]:
    layout = Layout(granularity, profile.means)
    nodes = {}
    for operation in im.operations:
        kind = kind_of(operation)
        nodes[operation.name] = Node(
            name=operation.name,
            kind=kind,
            inputs=operation.inputs,
            shape=layout.shape(operation.shape),
            mean=layout.mean(operation.name),
            table=kind.table(operation, layout),
            mask=operation.mask,
        )
    return nodes
