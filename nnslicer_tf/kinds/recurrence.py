"""Recurrent layers: the walk back through time, using the rules of the operations in a time step.

A recurrent layer is one node of a walk. Its operations at one time step, the cell, form a small
acyclic graph; the walk traverses it once per time step, from the last to the first, with the rules
of the cell's kinds and the values at that time. The contributions that a step passes to its
previous states are where the walk of the previous step begins. A constant initial state has Δ = 0.

A gate's weighted sum is over the sequence's entry and the state together, under one exclusion; its
synapses accumulate over time. At padding there are no neurons: CONTRIB of a state passes unchanged
to the previous state.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf.instrument.backend import over_time
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.instrument.recurrence import (
    GATE,
    HELD,
    RECURRENCE,
    SEQUENCE,
    ZEROED,
    Member,
    Unrolled,
    before,
    expand_to,
    split_inputs,
    time_first,
)
from nnslicer_tf.kinds.gates import GatesAtZero, expand_gates, gates_node, joined_columns
from nnslicer_tf.kinds.kind import Kind, Neurons, Node, kind_of, register_kind
from nnslicer_tf.kinds.pointwise import sign
from nnslicer_tf.kinds.rescale import midpoint

ops: Any = LazyModule("keras.ops")

Passes = Callable[[Kind], bool]
"""Whether CONTRIB passes unchanged through operations of a kind."""

# Kinds whose rule at θ = 0 reads only signs.
_BY_SIGNS = ("add", "scale", "elementwise", GATE, HELD)


@dataclass(frozen=True, eq=False)
class RecurrenceTable:
    """A recurrent layer, without Keras.

    Attributes:
        prefix: Prefix of the cell's names in the names of operations.
        cell: The nodes of one time step, in the order of the walk.
        states: Names of the operations whose values are states.
        shapes: Name of everything that the cell computes or reads → shape at one time step.
        steps: Number of time steps.
        backwards: Whether the first step reads the sequence's last entry.
        masked: Whether the layer's last input is a mask.
        held: Name of each state that is held at padding → the operation that computes it.
    """

    prefix: str
    cell: tuple[Node, ...]
    states: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    steps: int
    backwards: bool
    masked: bool
    held: dict[str, str]

    def place(self, t: int) -> int:
        """Return the index of the sequence's entry that step t reads."""
        return self.steps - 1 - t if self.backwards else t

    def inner(self, name: str) -> str:
        """Return the name that an operation of the layer has in the cell."""
        return name.removeprefix(self.prefix)


def recurrence_node(operation: Operation) -> Node:
    """Return the node that represents all operations of a recurrent layer.

    Args:
        operation: Any of these operations.
    """
    member: Member = operation.params
    unrolled = member.unrolled
    prefix = operation.name.removesuffix(member.operation.name)
    table = RecurrenceTable(
        prefix=prefix,
        cell=tuple(_cell_nodes(unrolled)),
        states=tuple(unrolled.states),
        shapes=unrolled.shapes,
        steps=unrolled.steps,
        backwards=unrolled.backwards,
        masked=unrolled.masked,
        held=_held(unrolled),
    )
    return Node(
        name=f"{prefix} through time",
        kind=kind_of(operation),
        inputs=operation.inputs,
        shape=(),
        mean=np.zeros(0),
        table=table,
        members=tuple(prefix + cell.name for cell in unrolled.cell),
    )


def _held(unrolled: Unrolled) -> dict[str, str]:
    return {o.name: o.inputs[-1] for o in unrolled.cell if o.kind == HELD}


def _cell_nodes(unrolled: Unrolled) -> Iterable[Node]:
    for gates in _consumers_first(unrolled):
        if gates[0].kind == GATE:
            yield gates_node(gates)
        else:
            (operation,) = gates
            kind, shape = kind_of(operation), operation.shape
            yield Node(operation.name, kind, operation.inputs, shape, np.zeros(0))


def _consumers_first(unrolled: Unrolled) -> Iterable[list[Operation]]:
    """Yield the cell's operations in walk order, grouping gates with the same inputs."""
    gates: list[Operation] = []
    for operation in reversed(unrolled.cell):
        if gates and (operation.kind != GATE or operation.inputs != gates[0].inputs):
            yield gates
            gates = []
        if operation.kind == GATE:
            gates.append(operation)
        else:
            yield [operation]
    if gates:
        yield gates


class _Values:
    """The values of a recurrent layer and of its inputs at each time step.

    Args:
        node: The layer.
        values: Returns the values of an operation, by name.
        batch: Number of samples.
    """

    def __init__(self, node: Node, values: Callable[[str], Neurons], batch: int) -> None:
        self._table: RecurrenceTable = node.table
        self._members = {self._table.inner(name): values(name) for name in node.members}
        sequence, initial, mask = split_inputs(node.inputs, self._table.masked)
        self._sequence = values(sequence)
        states = self._table.states
        self._first = {
            before(s): Neurons.constant((batch, *self._table.shapes[before(s)])) for s in states
        }
        for first in self._first.values():
            first.usual = first.captured
        for s, name in zip(states, initial, strict=False):
            self._first[before(s)] = values(name)
        self.present = None if mask is None else values(mask).captured > 0
        for name, computed in self._table.held.items():
            self._members[name] = self._held(name, computed)

    def _held(self, name: str, computed: str) -> Neurons:
        """Return a state that is held at padding, with the Δ of its latest computed value."""
        assert self.present is not None  # states are only held if there is a mask
        source, first = self._members[computed], self._first[before(name)]
        times = np.arange(self._table.steps)
        latest = np.maximum.accumulate(np.where(self.present, times, -1), axis=1)
        latest = latest.reshape(*latest.shape, *(1,) * (source.captured.ndim - 2))

        def at_latest(values: np.ndarray, initial: np.ndarray) -> np.ndarray:
            found = np.take_along_axis(values, np.maximum(latest, 0), axis=1)
            return np.where(latest < 0, initial[:, None], found)

        delta = at_latest(source.delta, first.delta)
        signs = at_latest(source.sign, first.sign)
        factor = at_latest(source.factor, first.factor)
        held = Neurons.known(self._members[name].captured, delta, signs, factor)
        held.usual = self._members[name].usual
        return held

    def present_at(self, t: int, rank: int) -> np.ndarray:
        """Return 1 where step t is data and 0 where it is padding, int32, with `rank` axes."""
        assert self.present is not None
        return self.present[:, t].astype(np.int32).reshape(-1, *(1,) * (rank - 1))

    def at(self, name: str, t: int) -> Neurons:
        """Return the neurons that the cell reads as `name` at step t."""
        if name == SEQUENCE:
            return self._sequence.at_time(self._table.place(t))
        if name in self._members:
            return self._members[name].at_time(t)
        if t == 0:
            return self._first[name]
        return self._members[name.removesuffix(before(""))].at_time(t - 1)


@dataclass(eq=False)
class Unwound:
    """The contributions found by a walk through a recurrent layer.

    Attributes:
        inputs: CONTRIB of each of the layer's inputs, None where nothing arrived.
        members: Operation name → CONTRIB `(batch, time, …)`.
        synapses: Kernel name → CONTRIB `(batch or 1, *kernel shape)`; at θ = 0, `(batch, taps,
            inputs, outputs)`.
    """

    inputs: list[Any]
    members: dict[str, Any]
    synapses: dict[str, Any] = field(default_factory=dict)


def unwind(
    node: Node,
    theta: float,
    given: Mapping[str, np.ndarray],
    values: Callable[[str], Neurons],
    passes: Passes,
    each: bool,
    rules: Mapping[str, Any] | None = None,
) -> Unwound:
    """Walk back through time with exclusion.

    Args:
        node: The recurrent layer.
        theta: Threshold θ.
        given: Name of an operation of the layer → CONTRIB that it received from outside.
        values: Returns the values of an operation, by name.
        passes: See `Passes`.
        each: Keep the synapses' contributions of each sample separate.
        rules: For amounts: name of an operation of the cell → its rule, which takes θ, its
            multipliers, its neurons, those of its inputs and the time, and returns multipliers.
    """
    table: RecurrenceTable = node.table
    dtype = np.int32 if rules is None else np.float32
    batch = len(next(iter(given.values())))
    at_times = _Values(node, values, batch)
    shapes = {name: table.shapes[table.inner(name)] for name in node.members}
    members = {name: np.zeros((batch, table.steps, *s), dtype) for name, s in shapes.items()}
    sequence = np.zeros((batch, table.steps, *table.shapes[SEQUENCE]), dtype)
    synapses: dict[str, np.ndarray] = {}
    carry: dict[str, np.ndarray] = {}
    for t in reversed(range(table.steps)):
        rule = _StepRule(at_times, t, theta, passes, each, synapses, rules)
        seed = {table.inner(name): array[:, t] for name, array in given.items()}
        for name, array in carry.items():
            seed[name] = seed[name] + array if name in seed else array
        received = propagate(table.cell, seed, rule, table.shapes)
        for name, total in members.items():
            total[:, t] = received.get(table.inner(name), 0)
        sequence[:, table.place(t)] = received.get(SEQUENCE, 0)
        carry = {s: received[before(s)] for s in table.states if before(s) in received}
    for held in table.held:
        total = members[table.prefix + held]
        for t in range(table.steps):
            total[:, t] *= at_times.present_at(t, total.ndim - 1)
    _, initial, mask = split_inputs(node.inputs, table.masked)
    given_back = [carry.get(s) for s, _ in zip(table.states, initial, strict=False)]
    return Unwound([sequence, *given_back, *([] if mask is None else [None])], members, synapses)


@dataclass(frozen=True, eq=False)
class _StepRule:
    """The rule that propagates contributions through the cell at one time step; see `unwind`."""

    values: _Values
    t: int
    theta: float
    passes: Passes
    each: bool
    synapses: dict[str, np.ndarray]
    rules: Mapping[str, Any] | None

    def __call__(self, node: Node, contribution: Any) -> Any:
        if node.members:
            return self._gates(node, contribution), {}
        if node.kind.name == HELD:
            present = self.values.present_at(self.t, contribution.ndim)
            return [None, contribution * (1 - present), contribution * present]
        if self.rules is None and self.passes(node.kind):
            return [contribution]
        output = self.values.at(node.name, self.t)
        inputs = [self.values.at(name, self.t) for name in node.inputs]
        if self.rules is not None:
            return self.rules[node.name](self.theta, contribution, output, inputs, self.t)
        signs = sign(contribution) * output.sign
        rule = node.kind.rule
        assert rule is not None, node.name  # cells in `instrument.layers` have only known kinds
        return rule.activation(node, self.theta, signs, output, inputs)

    def _gates(self, node: Node, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        outputs = [self.values.at(name, self.t) for name in node.members]
        inputs = [self.values.at(name, self.t) for name in node.inputs]
        amounts = self.rules is not None
        if amounts:
            zeros = [np.zeros(y.value.shape, np.float32) for y in outputs]
            parts = [given.get(n, zero) for n, zero in zip(node.members, zeros, strict=True)]
        else:
            parts = [
                sign(given[name]) * y.sign if name in given else np.zeros_like(y.sign)
                for name, y in zip(node.members, outputs, strict=True)
            ]
        reference = np.concatenate([y.reference for y in outputs], axis=-1)
        signs = np.concatenate(parts, axis=-1)
        return expand_gates(
            node.table, self.theta, signs, reference, inputs, self.synapses, self.each, amounts
        )


def unwind_at_zero(
    unrolled: Unrolled,
    prefix: str,
    inputs: Sequence[str],
    given: Mapping[str, Any],
    values: Mapping[str, Any],
    sign_of_delta: Callable[[str], Any],
    sign_of_factor: Callable[[str], Any],
    passes: Passes,
) -> Unwound:
    """Walk back through time at θ = 0, on tensors of the backend.

    Args:
        unrolled: The recurrent layer.
        prefix: Prefix of the cell's names in the names of operations.
        inputs: Names of the layer's inputs.
        given: Name of an operation of the layer → CONTRIB that it received from outside.
        values: Values by name.
        sign_of_delta: Returns the signs of an operation's Δ.
        sign_of_factor: Returns the signs of an operation's factor in products.
        passes: See `Passes`.
    """
    nodes = _tensor_nodes(unrolled)
    weight_signs = {n.name: n.weight_signs() for n in nodes if isinstance(n, GatesAtZero)}
    names = [operation.name for operation in unrolled.cell]
    held = _held(unrolled)
    sequence, initial, mask = split_inputs(inputs, unrolled.masked)
    present = None if mask is None else time_first(values[mask])
    batch = ops.shape(next(iter(given.values())))[0]

    def readable(read: Callable[[str], Any], hold: bool) -> dict[str, Any]:
        """Return all that the cell can read, time first: sequence, states and its own values.

        Args:
            read: Returns a tensor for an operation, by name.
            hold: Whether to replace states at padding by the latest ones before it.
        """
        found = {name: time_first(read(prefix + name)) for name in names}
        for k, (name, shape) in enumerate(unrolled.states.items()):
            first = read(initial[k]) if initial else ops.zeros((batch, *shape))
            if name in held and hold:
                found[name] = _at_latest(found[held[name]], first, present)
            found[before(name)] = ops.concatenate([first[None], found[name][:-1]], axis=0)
        found[SEQUENCE] = time_first(unrolled.in_order(read(sequence)))
        return found

    by_values = [o for o in unrolled.cell if o.kind not in _BY_SIGNS]
    products = [o for o in by_values if kind_of(o).multiplies]
    needed = {name for o in by_values if o not in products for name in (o.name, *o.inputs)}
    multiplied = {name for o in products for name in o.inputs}
    signs = readable(sign_of_delta, hold=True)
    read_values = readable(lambda name: values[name], hold=False) if needed else {}
    factors = readable(sign_of_factor, hold=True) if multiplied else {}
    entries = {
        **{("sign", name): value for name, value in signs.items()},
        **{("value", name): read_values[name] for name in read_values if name in needed},
        **{("factor", name): factors[name] for name in factors if name in multiplied},
        **{("given", name.removeprefix(prefix)): time_first(v) for name, v in given.items()},
        **({} if present is None else {("present", ""): present}),
    }

    def rule_at(at: Mapping[tuple[str, str], Any], gates: dict[str, Any]) -> Callable[..., Any]:
        values_at = {name: value for (what, name), value in at.items() if what == "value"}
        factors_at = {name: value for (what, name), value in at.items() if what == "factor"}

        def rule(node: Any, contribution: Any) -> Any:
            of_inputs = [at["sign", name] for name in node.inputs]
            if isinstance(node, GatesAtZero):
                parts = [ops.sign(contribution[n]) * at["sign", n] for n in node.members]
                gates[node.name] = ops.concatenate(parts, axis=-1)
                return node.expand(gates[node.name], of_inputs, weight_signs[node.name]), {}
            kind = kind_of(node)
            if passes(kind):
                return [contribution]
            assert kind.at_zero is not None, node.name  # as for exclusion
            g = ops.sign(contribution) * at["sign", node.name]
            return kind.at_zero(node, g, of_inputs, factors_at if kind.multiplies else values_at)

        return rule

    return _unwind_tensors(unrolled, prefix, inputs, given, present, nodes, entries, signs, rule_at)


def unwind_multipliers(
    unrolled: Unrolled,
    prefix: str,
    inputs: Sequence[str],
    given: Mapping[str, Any],
    values: Mapping[str, Any],
    reference: Mapping[str, Any],
) -> Unwound:
    """Walk multipliers back through time at θ = 0, on tensors of the backend.

    Args:
        unrolled: The recurrent layer.
        prefix: Prefix of the cell's names in the names of operations.
        inputs: Names of the layer's inputs.
        given: Name of an operation of the layer → multipliers that it received from outside.
        values: Values by name.
        reference: Reference values by name, of the same shapes.
    """
    nodes = _tensor_nodes(unrolled)
    sequence, initial, mask = split_inputs(inputs, unrolled.masked)
    present = None if mask is None else time_first(values[mask])

    def readable(read: Mapping[str, Any]) -> dict[str, Any]:
        """Return all that the cell can read, time first: sequence, states and its own values."""
        found = {o.name: time_first(read[prefix + o.name]) for o in unrolled.cell}
        for k, (name, shape) in enumerate(unrolled.states.items()):
            batch = ops.shape(found[name])[1]
            first = read[initial[k]] if initial else ops.zeros((batch, *shape))
            found[before(name)] = ops.concatenate([first[None], found[name][:-1]], axis=0)
        found[SEQUENCE] = time_first(unrolled.in_order(read[sequence]))
        return found

    value, usual = readable(values), readable(reference)
    entries = {
        **{("value", name): v for name, v in value.items()},
        **{("reference", name): v for name, v in usual.items()},
        **{("given", name.removeprefix(prefix)): time_first(v) for name, v in given.items()},
        **({} if present is None else {("present", ""): present}),
    }

    def rule_at(at: Mapping[tuple[str, str], Any], gates: dict[str, Any]) -> Callable[..., Any]:
        def of(operation: Operation, multipliers: Any) -> Sequence[Any]:
            ends, usual = (
                [at[end, name] for name in operation.inputs] for end in ("value", "reference")
            )
            return (kind_of(operation).rescale or midpoint)(operation, ends, usual, multipliers)

        def rule(node: Any, multipliers: Any) -> Any:
            if not isinstance(node, GatesAtZero):
                return of(node, multipliers)
            gates[node.name] = ops.concatenate([multipliers[n] for n in node.members], axis=-1)
            parts = [of(o, multipliers[o.name]) for o in node.operations]
            return [sum(of_input[1:], of_input[0]) for of_input in zip(*parts, strict=True)], {}

        return rule

    changes = {name: v - usual[name] for name, v in value.items()}
    return _unwind_tensors(
        unrolled, prefix, inputs, given, present, nodes, entries, changes, rule_at
    )


def _tensor_nodes(unrolled: Unrolled) -> list[Any]:
    return [
        GatesAtZero(tuple(group)) if group[0].kind == GATE else group[0]
        for group in _consumers_first(unrolled)
    ]


def _unwind_tensors(
    unrolled: Unrolled,
    prefix: str,
    inputs: Sequence[str],
    given: Mapping[str, Any],
    present: Any,
    nodes: Sequence[Any],
    entries: Mapping[tuple[str, str], Any],
    changes: Mapping[str, Any],
    rule_at: Callable[..., Callable[..., Any]],
) -> Unwound:
    """Run a walk back through time as a loop of the backend.

    Args:
        unrolled: The recurrent layer.
        prefix: Prefix of the cell's names in the names of operations.
        inputs: Names of the layer's inputs.
        given: Name of an operation of the layer → what it received from outside.
        present: Where there is no padding, time first; None without a mask.
        nodes: The cell's nodes.
        entries: What the rule reads at each time, `(time, batch, …)`, and what was given.
        changes: What the cell reads → its signs or changes, with which the gates' outputs are
            multiplied for the synapses.
        rule_at: Creates the rule of a time from its entries, and from a dict to which the rule
            adds what the gates received.
    """
    names = [operation.name for operation in unrolled.cell]
    held = _held(unrolled)
    _, initial, mask = split_inputs(inputs, unrolled.masked)
    batch = ops.shape(next(iter(given.values())))[0]
    zeros = {name: ops.zeros((batch, *unrolled.shapes[name])) for name in names}

    def step(carry: list[Any], found: list[Any]) -> tuple[list[Any], list[Any]]:
        at = dict(zip(entries, found, strict=True))
        gates: dict[str, Any] = {}
        of_cell = rule_at(at, gates)

        def rule(node: Any, contribution: Any) -> Any:
            if node.name in held:
                here = expand_to(at["present", ""], contribution)
                return [None, contribution * (1 - here), contribution * here]
            return of_cell(node, contribution)

        seed = {name: at.get(("given", name), zeros[name]) for name in names}
        for name, value in zip(unrolled.states, carry, strict=True):
            seed[name] = seed[name] + value
        received = propagate(nodes, seed, rule, unrolled.shapes)
        totals = [received[name] for name in (*names, SEQUENCE)]
        return [received[before(s)] for s in unrolled.states], [*totals, *gates.values()]

    carry = [zeros[name] for name in unrolled.states]
    before_all, found = over_time(step, carry, list(entries.values()), reverse=True)
    *totals, to_sequence = found[: len(names) + 1]
    members = {
        name: time_first(v * expand_to(present, v) if name in held else v)
        for name, v in zip(names, totals, strict=True)
    }
    of_gates = [node for node in nodes if isinstance(node, GatesAtZero)]
    synapses: dict[str, list] = {}
    for node, g in zip(of_gates, found[len(names) + 1 :], strict=True):
        of_inputs = [time_first(changes[name]) for name in node.inputs]
        for name, parts in node.synapses(time_first(g), of_inputs).items():
            synapses.setdefault(name, []).extend(parts)
    return Unwound(
        [
            unrolled.in_order(time_first(to_sequence)),
            *before_all[: len(initial)],
            *([] if mask is None else [None]),
        ],
        {prefix + name: value for name, value in members.items()},
        {name: joined_columns(parts) for name, parts in synapses.items()},
    )


def _at_latest(values: Any, first: Any, present: Any) -> Any:
    """Return values, time first, at the latest time that is not padding; `first` if none is."""
    steps = values.shape[0]
    times = ops.arange(steps)
    earlier = ops.cast(times[:, None] >= times[None, :], "float32")  # (time, time read)
    places = earlier[:, :, None] * present[None] * ops.cast(times + 1, "float32")[None, :, None]
    latest = ops.cast(ops.max(places, axis=1), "int32")  # 0: none
    whole = ops.concatenate([first[None], values], axis=0)
    index = ops.broadcast_to(expand_to(latest, values), ops.shape(values))
    return ops.take_along_axis(whole, index, axis=0)


def _zeroed(node: Node, contribution: Any) -> list[Any]:
    """Pass CONTRIB on unchanged: at padding there is none."""
    return [contribution, None]


register_kind(Kind(GATE))
register_kind(Kind(HELD))
register_kind(
    Kind(
        ZEROED,
        reach="element",
        move=_zeroed,
        at_zero=lambda operation, contribution, signs, values: [contribution, None],
        rescale=lambda operation, *given: [midpoint(operation, *given)[0], None],
    )
)
register_kind(Kind(RECURRENCE, through_time=True))
