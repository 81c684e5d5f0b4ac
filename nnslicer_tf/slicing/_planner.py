"""Planning of a walk from an instrumented model, its profile and a criterion."""

from typing import Any

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.recurrence import RECURRENCE, RecurrentLayer, consumers_first
from nnslicer_tf.kinds import EXCLUSION, Node, kind_of
from nnslicer_tf.kinds.check import check_amounts
from nnslicer_tf.kinds.kind import Layout
from nnslicer_tf.kinds.recurrence import recurrence_node
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing.criterion import ResolvedCriterion


def plan_walk(
    im: InstrumentedModel, layout: Layout, criterion: ResolvedCriterion, **settings: Any
) -> Plan:
    """Plan the walk of a criterion; `settings` are the attributes of `Plan` with the same names."""
    start = criterion.start
    starts = [criterion.logits] if start.predicted else list(start.neurons)
    ancestors = im.graph.ancestors(starts, first=criterion.last)
    nodes = _nodes(im, layout)
    order = [
        recurrence_node(step) if isinstance(step, RecurrentLayer) else nodes[step.name]
        for step in consumers_first(o for o in ancestors if o.name not in im.input_operations)
    ]

    # Operations that only move values are not captured.
    captured = {criterion.logits}
    for node in order:
        if not node.kind.moves:
            captured.update((*(node.members or (node.name,)), *node.inputs))
    walked = (*starts, *(name for node in order for name in (*node.inputs, *node.members)))
    captured.update(mask for name in walked if (mask := im[name].mask) is not None)
    return Plan(
        nodes=nodes,
        expanded=tuple(order),
        captured=tuple(o.name for o in im.operations if o.name in captured),
        start=start,
        logits=criterion.logits,
        kernels={name: kernel.layout for name, kernel in im.kernels.items()},
        **settings,
    )


def check_rules(im: InstrumentedModel, granularity: str, contribution: str) -> None:
    """Raise UnsupportedLayerError if an operation has no rule, or one that does not add up."""
    for operation in im.operations:
        if granularity == "channel" and operation.kind == RECURRENCE:
            raise UnsupportedLayerError(
                f"Layer '{operation.layer}' is recurrent: a mean over time steps is not a neuron. "
                "Use granularity='activation'."
            )
    for operation in im.operations:
        if operation.inputs and operation.kind not in (RECURRENCE, *EXCLUSION):
            layer = type(operation.keras_layer).__name__
            raise UnsupportedLayerError(
                f"Operation '{operation.name}' ({layer}) is of kind '{operation.kind}', which has "
                "no rule. Register one with "
                f"nnslicer_tf.kinds.register_rule('{operation.kind}', rule)."
            )
    im.prepared(f"{contribution}s add up", lambda: check_amounts(im, contribution))


def _nodes(im: InstrumentedModel, layout: Layout) -> dict[str, Node]:
    nodes = {}
    for operation in im.operations:
        rule = EXCLUSION.get(operation.kind)
        nodes[operation.name] = Node(
            name=operation.name,
            kind=kind_of(operation),
            inputs=operation.inputs,
            shape=layout.shape(operation.shape),
            mean=layout.mean(operation.name),
            rule=rule,
            table=rule.table(operation, layout) if rule and rule.table else None,
            mask=operation.mask,
            rounding=layout.bound(operation.name),
        )
    return nodes
