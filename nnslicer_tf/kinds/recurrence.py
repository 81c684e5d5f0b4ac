"""Recurrent layers: the walk back through time, using the rules of the operations in a time step.

A recurrent layer is one node of a walk. The operations of one time step, the cell, are walked once
per step, from the last to the first, with that time's values. What a step passes to its previous
states is where the walk of the previous step begins. A constant initial state has Δ = 0.

A gate's weighted sum is over the sequence's entry and the state together, under one exclusion; its
synapses accumulate over time. Padding has no neurons: a state's CONTRIB passes through unchanged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf.instrument.backend import over_time
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.instrument.recurrence import (
    GATE,
    HELD,
    RECURRENCE,
    SEQUENCE,
    ZEROED,
    RecurrentLayer,
    Unrolled,
    before,
    expand_to,
    split_inputs,
    time_first,
)
from nnslicer_tf.kinds import weighted_sum
from nnslicer_tf.kinds.kind import (
    AT_ZERO,
    EXCLUSION,
    AtZero,
    Kind,
    MultiplierRule,
    Neurons,
    Node,
    Rule,
    kind_of,
    register_kind,
)
from nnslicer_tf.kinds.pointwise import sign
from nnslicer_tf.kinds.rescale import midpoint

Passes = Callable[[Kind], bool]
"""Whether CONTRIB passes unchanged through operations of a kind."""

# Kinds whose rule at θ = 0 reads only signs.
_BY_SIGNS = ("add", "scale", "elementwise", GATE, HELD)


def recurrence_node(layer: RecurrentLayer) -> Node:
    """Return the node of a recurrent layer for the walk with exclusion; its cell has nodes, too."""
    nothing = np.zeros(0)

    def node(o: Operation) -> Node:
        table = weighted_sum.gate_table(o) if o.kind == GATE else None
        return Node(o.name, kind_of(o), o.inputs, o.shape, nothing, EXCLUSION.get(o.kind), table)

    cell: Any = tuple(map(node, layer.unrolled.cell))
    table = replace(layer, unrolled=replace(layer.unrolled, cell=cell))
    known = (layer.name, Kind(RECURRENCE), layer.inputs, (), nothing)
    return Node(*known, table=table, members=layer.members)


def _held(unrolled: Unrolled) -> dict[str, str]:
    """Return each state that is held at padding → the operation that computes it."""
    kinds = ((o, getattr(o.kind, "name", o.kind)) for o in unrolled.cell)
    return {o.name: o.inputs[-1] for o, kind in kinds if kind == HELD}


class _Values:
    """The values of a recurrent layer and of its inputs at each time step, read by name."""

    def __init__(self, node: Node, values: Callable[[str], Neurons], batch: int) -> None:
        layer: RecurrentLayer = node.table
        self._unrolled = layer.unrolled
        self._members = {layer.inner(name): values(name) for name in node.members}
        sequence, initial, mask = split_inputs(node.inputs, self._unrolled.masked)
        self._sequence = values(sequence)
        self._first: dict[str, Neurons] = {}
        for k, (state, shape) in enumerate(self._unrolled.states.items()):
            zeros = np.zeros((batch, *shape), np.float32)
            first = values(initial[k]) if k < len(initial) else Neurons(zeros, zeros[0])
            self._first[before(state)] = first
        self.present = None if mask is None else values(mask).captured > 0
        for name, computed in _held(self._unrolled).items():
            self._members[name] = self._held(name, computed)

    def _held(self, name: str, computed: str) -> Neurons:
        """Return a state that is held at padding, with the Δ of its latest computed value."""
        assert self.present is not None  # states are only held if there is a mask
        source, first = self._members[computed], self._first[before(name)]
        times = np.arange(self._unrolled.steps)
        latest = np.maximum.accumulate(np.where(self.present, times, -1), axis=1)
        latest = latest.reshape(*latest.shape, *(1,) * (source.captured.ndim - 2))

        def at_latest(values: np.ndarray, initial: np.ndarray) -> np.ndarray:
            found = np.take_along_axis(values, np.maximum(latest, 0), axis=1)
            return np.where(latest < 0, initial[:, None], found)

        delta = at_latest(source.delta, first.delta)
        signs = at_latest(source.sign, first.sign)
        factor = at_latest(source.factor, first.factor)
        return Neurons.known(self._members[name].captured, delta, signs, factor)

    def present_at(self, t: int, rank: int) -> np.ndarray:
        """Return 1 where step t is data and 0 where it is padding, int32, with `rank` axes."""
        assert self.present is not None
        return self.present[:, t].astype(np.int32).reshape(-1, *(1,) * (rank - 1))

    def at(self, name: str, t: int) -> Neurons:
        """Return the neurons that the cell reads as `name` at step t."""
        if name == SEQUENCE:
            return self._sequence.at_time(self._unrolled.place(t))
        if name in self._members:
            return self._members[name].at_time(t)
        if t == 0:
            return self._first[name]
        return self._members[name.removesuffix(before(""))].at_time(t - 1)


@dataclass(eq=False)
class Unwound:
    """The contributions found by a walk through a recurrent layer."""

    inputs: list[Any]  # for each input of the layer, None where nothing arrived
    members: dict[str, Any]  # operation name → (batch, time, …)
    # kernel name → (batch or 1, *kernel shape); at θ = 0, (batch, taps, inputs, outputs)
    synapses: dict[str, Any] = field(default_factory=dict)


def unwind(
    node: Node,
    theta: float,
    given: Mapping[str, np.ndarray],
    values: Callable[[str], Neurons],
    passes: Passes,
    each: bool,
) -> Unwound:
    """Walk back through time with exclusion.

    `given` maps operations of the layer to the CONTRIB that they received from outside, and
    `values` returns an operation's values by name; `each` separates the samples' synapses.
    """
    layer: RecurrentLayer = node.table
    unrolled, inner = layer.unrolled, layer.inner
    batch, shapes = len(next(iter(given.values()))), unrolled.shapes
    at_times = _Values(node, values, batch)
    members = {
        name: np.zeros((batch, unrolled.steps, *shapes[inner(name)]), np.int32)
        for name in node.members
    }
    sequence = np.zeros((batch, unrolled.steps, *shapes[SEQUENCE]), np.int32)
    synapses: dict[str, np.ndarray] = {}

    def expand(t: int, node: Node, contribution: Any) -> Any:
        if node.kind.name == HELD:
            present = at_times.present_at(t, contribution.ndim)
            return [None, contribution * (1 - present), contribution * present]
        if passes(node.kind):
            return [contribution]
        inputs = [at_times.at(name, t) for name in node.inputs]
        output = at_times.at(node.name, t)
        signs = sign(contribution) * output.sign
        if node.kind.name == GATE:
            return weighted_sum.expand_gate(
                node.table, theta, signs, output.reference, inputs, synapses, each
            )
        assert node.rule is not None, node.name  # cells have only known kinds
        return node.rule.activation(node, theta, signs, output, inputs)

    carry: dict[str, np.ndarray] = {}
    for t in reversed(range(unrolled.steps)):
        seed = {inner(name): array[:, t] for name, array in given.items()}
        seed |= {name: seed.get(name, 0) + array for name, array in carry.items()}
        received = propagate(reversed(unrolled.cell), seed, partial(expand, t), shapes)
        for name, total in members.items():
            total[:, t] = received.get(inner(name), 0)
        sequence[:, unrolled.place(t)] = received.get(SEQUENCE, 0)
        carry = {s: received[before(s)] for s in unrolled.states if before(s) in received}
    for held in _held(unrolled):
        total = members[layer.prefix + held]
        for t in range(unrolled.steps):
            total[:, t] *= at_times.present_at(t, total.ndim - 1)
    _, initial, mask = split_inputs(node.inputs, unrolled.masked)
    to_initial = [carry.get(s) for s, _ in zip(unrolled.states, initial, strict=False)]
    return Unwound([sequence, *to_initial, *([] if mask is None else [None])], members, synapses)


def unwind_at_zero(
    layer: RecurrentLayer,
    given: Mapping[str, Any],
    values: Mapping[str, Any],
    sign_of_delta: Callable[[str], Any],
    sign_of_factor: Callable[[str], Any],
    passes: Passes,
) -> Unwound:
    """Walk back as `unwind` does, at θ = 0, on tensors; the functions return signs by name."""
    walk = _TensorWalk(layer, given, values)
    weight_signs = {o.name: weighted_sum.signs_of_gate(o) for o in walk.gates}
    signs = walk.readable(sign_of_delta, hold=True)
    entries = {("sign", name): value for name, value in signs.items()}
    by_values = [o for o in layer.unrolled.cell if o.kind not in _BY_SIGNS]
    for what, read in (("value", values.__getitem__), ("factor", sign_of_factor)):
        of_kind = [o for o in by_values if kind_of(o).multiplies == (what == "factor")]
        needed = {name for o in of_kind for name in (o.name, *o.inputs)}
        found = walk.readable(read, hold=what == "factor") if needed else {}
        entries |= {(what, name): found[name] for name in found if name in needed}

    def rule(at: Mapping[tuple[str, str], Any], node: Any, contribution: Any, gates: dict) -> Any:
        of_inputs = [at["sign", name] for name in node.inputs]
        kind = kind_of(node)
        if passes(kind):
            return [contribution]
        g = ops.sign(contribution) * at["sign", node.name]
        if node.kind == GATE:
            gates[node.name] = g
            return weighted_sum.gate_at_zero(node, g, of_inputs, weight_signs[node.name])
        what = "factor" if kind.multiplies else "value"
        values_at = {name: value for (entry, name), value in at.items() if entry == what}
        return AT_ZERO[kind.name].inputs(node, g, of_inputs, values_at)

    return walk.run(entries, signs, rule)


def unwind_multipliers(
    layer: RecurrentLayer,
    given: Mapping[str, Any],
    values: Mapping[str, Any],
    reference: Mapping[str, Any],
    rule: MultiplierRule,
) -> Unwound:
    """Walk multipliers back through time, on tensors, with reference values by name."""
    walk = _TensorWalk(layer, given, values)
    value, usual = (walk.readable(of_all.__getitem__) for of_all in (values, reference))
    entries = {("value", name): v for name, v in value.items()}
    entries |= {("reference", name): v for name, v in usual.items()}

    def expand(at: Mapping[tuple[str, str], Any], node: Any, multipliers: Any, gates: dict) -> Any:
        if node.kind == GATE:
            gates[node.name] = multipliers
        ends, usual = ([at[end, n] for n in node.inputs] for end in ("value", "reference"))
        return rule(node, ends, usual, multipliers)

    return walk.run(entries, {name: v - usual[name] for name, v in value.items()}, expand)


class _TensorWalk:
    """A walk back through time as a loop of the backend; arguments as in `unwind_at_zero`."""

    def __init__(
        self, layer: RecurrentLayer, given: Mapping[str, Any], values: Mapping[str, Any]
    ) -> None:
        self._unrolled = unrolled = layer.unrolled
        self._prefix = prefix = layer.prefix
        self.gates = [operation for operation in unrolled.cell if operation.kind == GATE]
        self._names = [operation.name for operation in unrolled.cell]
        self._held = _held(unrolled)
        self._sequence, self._initial, self._mask = split_inputs(layer.inputs, unrolled.masked)
        self._present = None if self._mask is None else time_first(values[self._mask])
        self._given = {name.removeprefix(prefix): time_first(v) for name, v in given.items()}
        self._batch = ops.shape(next(iter(given.values())))[0]

    def readable(self, read: Callable[[str], Any], hold: bool = False) -> dict[str, Any]:
        """Return all that the cell can read, time first: sequence, states and its own values.

        `read` returns a tensor by name; `hold` replaces states at padding by the latest before it.
        """
        tensors = {name: time_first(read(self._prefix + name)) for name in self._names}
        for k, (name, shape) in enumerate(self._unrolled.states.items()):
            zeros = ops.zeros((self._batch, *shape), "float32")
            first = read(self._initial[k]) if self._initial else zeros
            if hold and name in self._held:
                tensors[name] = _at_latest(tensors[self._held[name]], first, self._present)
            tensors[before(name)] = ops.concatenate([first[None], tensors[name][:-1]], axis=0)
        tensors[SEQUENCE] = time_first(self._unrolled.in_order(read(self._sequence)))
        return tensors

    def run(
        self,
        entries: Mapping[tuple[str, str], Any],
        changes: Mapping[str, Any],
        rule: Callable[..., Any],
    ) -> Unwound:
        """Run the loop over time.

        `entries` are what the rule reads, `(time, batch, …)`; `changes` map what the cell reads to
        the signs or changes by which the gates' outputs are multiplied for the synapses. The rule
        takes the entries of a time, a node, what it received, and a dict to which it adds what
        gates received.
        """
        names, states = self._names, self._unrolled.states
        shapes, cell = self._unrolled.shapes, self._unrolled.read()
        zeros = {name: ops.zeros((self._batch, *shapes[name]), "float32") for name in names}
        entries = {**entries, **{("given", name): v for name, v in self._given.items()}}
        if self._present is not None:
            entries["present", ""] = self._present

        def step(carry: list[Any], at_time: list[Any]) -> tuple[list[Any], list[Any]]:
            at = dict(zip(entries, at_time, strict=True))
            gates: dict[str, Any] = {}

            def expand(node: Any, contribution: Any) -> Any:
                if node.name in self._held:
                    here = expand_to(at["present", ""], contribution)
                    return [None, contribution * (1 - here), contribution * here]
                return rule(at, node, contribution, gates)

            seed = {name: at.get(("given", name), zeros[name]) for name in names}
            for name, value in zip(states, carry, strict=True):
                seed[name] = seed[name] + value
            received = propagate(reversed(cell), seed, expand, shapes)
            totals = [received[name] for name in (*names, SEQUENCE)]
            of_gates = [gates[operation.name] for operation in self.gates]
            return [received[before(s)] for s in states], [*totals, *of_gates]

        carry = [zeros[name] for name in states]
        results = len(names) + 1 + len(self.gates)
        to_states, totals = over_time(step, carry, list(entries.values()), results, reverse=True)
        *of_members, to_sequence = totals[: len(names) + 1]
        members = {}
        for name, value in zip(names, of_members, strict=True):
            if name in self._held:
                value = value * expand_to(self._present, value)
            members[self._prefix + name] = time_first(value)

        # The gates' columns of each kernel, joined in their order.
        columns: dict[str, list[tuple[int, Any]]] = {}
        for gate, g in zip(self.gates, totals[len(names) + 1 :], strict=True):
            of_inputs = [time_first(changes[name]) for name in gate.inputs]
            for name, part in weighted_sum.gate_synapses(gate, time_first(g), of_inputs).items():
                columns.setdefault(name, []).append(part)
        synapses = {}
        for name, parts in columns.items():
            ordered = sorted(parts, key=lambda part: part[0])
            synapses[name] = ops.concatenate([value for _, value in ordered], axis=-1)
        to_inputs = [self._unrolled.in_order(time_first(to_sequence))]
        to_inputs += to_states[: len(self._initial)]
        return Unwound([*to_inputs, *([] if self._mask is None else [None])], members, synapses)


def _at_latest(values: Any, first: Any, present: Any) -> Any:
    """Return values, time first, at the latest time that is not padding; `first` if none is."""
    times = ops.arange(values.shape[0])
    earlier = ops.cast(times[:, None] >= times[None, :], "float32")  # (time, time read)
    places = earlier[:, :, None] * present[None] * ops.cast(times + 1, "float32")[None, :, None]
    latest = ops.cast(ops.max(places, axis=1), "int32")  # 0: none
    index = ops.broadcast_to(expand_to(latest, values), ops.shape(values))
    return ops.take_along_axis(ops.concatenate([first[None], values], axis=0), index, axis=0)


def _zeroed(node: Node, theta: float, contribution: Any, *_: Any) -> list[Any]:
    """Pass CONTRIB on unchanged: at padding there is none."""
    return [contribution, None]


# The walk in this module replaces the rules of gates, held states and whole layers.
register_kind(
    Kind(ZEROED, reach="element", moves=True),
    Rule(_zeroed, _zeroed),
    AtZero(lambda operation, contribution, *_: [contribution, None]),
    lambda *values: [midpoint(*values)[0], None],
)
