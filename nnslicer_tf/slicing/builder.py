"""From an instrumented model and its profile to a backward program."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, Operation, Pooling, Synapses
from nnslicer_tf.instrument.routing import INSERTED, routing_map
from nnslicer_tf.slicing._kernels import tap_means
from nnslicer_tf.slicing.criterion import ResolvedCriterion
from nnslicer_tf.slicing.profile import Profile
from nnslicer_tf.slicing.program import Links, Node, Program, SumTable
from nnslicer_tf.slicing.rules import rule_for

__all__ = ["GRANULARITIES", "build_program", "check_rules", "neuron_shape"]

GRANULARITIES = ("activation", "channel")


def build_program(
    im: InstrumentedModel,
    profile: Profile,
    criterion: ResolvedCriterion,
    theta: float,
    granularity: str,
) -> Program:
    """Lay out the walk of `criterion` through the model."""
    expanded = _expanded(im, criterion)
    nodes = {o.name: _node(o, profile, granularity) for o in im.operations}
    needed = {name for name in expanded if nodes[name].kind != "routing"}
    needed.update(source for name in tuple(needed) for source in nodes[name].inputs)
    needed.add(im.logit_operation)
    return Program(
        nodes=nodes,
        expanded=tuple(expanded),
        captured=tuple(o.name for o in im.operations if o.name in needed),
        start=criterion.start,
        logits=im.logit_operation,
        theta=theta,
        granularity=granularity,
        kernels={name: kernel.layout for name, kernel in im.kernels.items()},
    )


def check_rules(im: InstrumentedModel, granularity: str) -> None:
    """Refuse a model with operations that no rule covers.

    Raises:
        UnsupportedLayerError: if an operation before the logits is of an unknown kind.
    """
    for operation in im.operations[1:]:
        built_in = operation.kind in ("weighted_sum", "routing")
        if not built_in and rule_for(operation.kind, granularity) is None:
            layer = type(operation.keras_layer).__name__
            raise UnsupportedLayerError(
                f"Operation '{operation.name}' ({layer}) is of kind '{operation.kind}', which has "
                f"no rule. Register one with nnslicer_tf.register_rule('{operation.kind}', rule)."
            )


def neuron_shape(shape: Sequence[int], granularity: str) -> tuple[int, ...]:
    """Return the shape of an operation's neurons: all, or one for each channel."""
    return tuple(shape) if granularity == "activation" else tuple(shape[-1:])


def _expanded(im: InstrumentedModel, criterion: ResolvedCriterion) -> list[str]:
    """Return the operations to expand, last first."""
    order = [operation.name for operation in im.operations]
    start = criterion.start
    reached = {im.logit_operation} if start.predicted else set(start.neurons)
    for operation in reversed(im.operations):
        if operation.name in reached:
            reached.update(operation.inputs)
    first = order.index(criterion.last) if criterion.last else 1
    return [name for name in reversed(order[first:]) if name in reached]


def _node(operation: Operation, profile: Profile, granularity: str) -> Node:
    mean = profile.means[operation.name]
    if granularity == "channel":
        mean = mean.reshape(-1, mean.shape[-1]).mean(axis=0)
    return Node(
        name=operation.name,
        kind=operation.kind,
        inputs=operation.inputs,
        shape=neuron_shape(operation.shape, granularity),
        mean=mean,
        table=_table(operation, profile, granularity),
    )


def _table(operation: Operation, profile: Profile, granularity: str) -> Any:
    params = operation.params
    if isinstance(params, Synapses):
        means = None
        if granularity == "channel":
            inputs = profile.means[operation.inputs[0]]
            means = tap_means(inputs.reshape(1, -1, inputs.shape[-1]), params.taps)[0]
        return SumTable(params.name, _grouped(params), params.taps, means)
    if isinstance(params, Pooling):
        return params.taps
    if operation.kind == "routing":
        return _links(operation, granularity)
    return None


def _grouped(synapses: Synapses) -> np.ndarray:
    """Return the weights as `(groups, outputs per group, taps · inputs per group)`."""
    matrix = synapses.matrix()
    taps, inputs, outputs = matrix.shape
    by_output = matrix.reshape(taps * inputs, outputs).T
    return np.ascontiguousarray(by_output).reshape(synapses.groups, -1, taps * inputs)


def _links(operation: Operation, granularity: str) -> list[Links]:
    """Return, for each input, the distinct pairs of neurons that are linked."""
    sources = routing_map(operation).ravel()
    targets = np.arange(sources.size)
    moved = sources != INSERTED
    sources, targets = sources[moved], targets[moved]
    if granularity == "channel":
        targets = targets % operation.shape[-1]
    links = []
    first = 0
    for shape in operation.input_shapes:
        size = int(np.prod(shape))
        of_input = (sources >= first) & (sources < first + size)
        source, target = sources[of_input] - first, targets[of_input]
        if granularity == "channel":
            pairs = np.unique(np.stack([source % shape[-1], target]), axis=1)
            source, target = pairs
        links.append(Links(source, target))
        first += size
    return links
