"""Recurrent layers: the operations of one time step, and how time steps are connected.

Through time, these operations depend on each other and have no topological order, so they are
computed and walked together: `Unrolled` holds those of one time step, the *cell*, which are
acyclic. In the graph, each is an operation of kind "recurrence" with neurons (time, units) and the
layer's inputs. No Keras layer class is needed here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nnslicer_tf._environment import ops
from nnslicer_tf.instrument.backend import over_time
from nnslicer_tf.instrument.operations import NO_MASK, Operation, Source, Step, Synapses

SEQUENCE = "x"
"""Name under which a cell's operations read the sequence's entry at the current time step."""

PRESENT = "present"
"""Name under which they read whether the current time step is data or padding."""

RECURRENCE = "recurrence"
GATE = "gate"
HELD = "held"
"""Kind of a state as the next step reads it: at padding, it keeps its previous value."""
ZEROED = "zeroed"
"""Kind of a layer's outputs that are 0 at padding."""


def before(name: str) -> str:
    """Return the name under which a cell's operations read a state of the previous time step."""
    return f"{name}[t-1]"


@dataclass(frozen=True, eq=False)
class Weights:
    """Columns `start` to `stop` of a kernel, which a gate applies to one input at a time step."""

    kernel: Synapses
    start: int
    stop: int

    def columns(self, kernel: Any) -> Any:
        """Return the columns of an array or tensor of the kernel's shape, or of its matrix."""
        return kernel[..., self.start : self.stop]

    def apply(self, x: Any) -> Any:
        """Return the weighted sum of an input at one time, in the dtype of the input."""
        return self.kernel.apply(x, self.columns(ops.cast(self.kernel.variable(), x.dtype)))


@dataclass(frozen=True, eq=False)
class Gate:
    """The weighted sum of a gate at one time step, over all its inputs; bias `(units,)` or None."""

    weights: tuple[Weights, ...]
    bias: Callable[[], Any]

    def compute(self, *inputs: Any) -> Any:
        """Return the sum, with the bias."""
        return self.read()(*inputs)

    def read(self) -> Callable[..., Any]:
        """Return `compute` with the weights as they are now, read once for all time steps."""
        columns = [w.columns(ops.convert_to_tensor(w.kernel.variable())) for w in self.weights]
        bias = self.bias()

        def compute(*inputs: Any) -> Any:
            parts = zip(self.weights, columns, inputs, strict=True)
            sums = [w.kernel.apply(x, ops.cast(part, x.dtype)) for w, part, x in parts]
            total = sum(sums[1:], sums[0])
            return total if bias is None else total + ops.cast(bias, total.dtype)

        return compute

    @property
    def kernels(self) -> tuple[Synapses, ...]:
        """The kernels that contain the weights as columns."""
        return tuple(weights.kernel for weights in self.weights)


@dataclass(frozen=True, eq=False)
class Unrolled:
    """A recurrent layer's operations through time."""

    # The operations of one time step, in topological order, named by their suffixes in the graph;
    # they read each other, `SEQUENCE`, and states under `before(name)`.
    cell: tuple[Operation, ...]
    states: dict[str, tuple[int, ...]]  # the operation that computes a state → the state's shape
    sequence: tuple[int, ...]  # (time, …)
    backwards: bool  # whether the first step reads the last entry; values are in the steps' order
    # Whether the last input is a mask, in the steps' order. Each state is then of kind `HELD`, and
    # combines the new state, the previous one and `PRESENT`.
    masked: bool

    @property
    def steps(self) -> int:
        """Number of time steps."""
        return self.sequence[0]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of everything that the cell computes or reads → shape at one time step."""
        return {
            SEQUENCE: self.sequence[1:],
            PRESENT: (),
            **{before(name): shape for name, shape in self.states.items()},
            **{operation.name: operation.shape for operation in self.cell},
        }

    def read(self) -> tuple[Operation, ...]:
        """Return the cell with its gates' weights as they are now, read once for all steps."""
        gates = {o.name: o.params for o in self.cell if isinstance(o.params, Gate)}
        return tuple(
            replace(o, compute=gates[o.name].read()) if o.name in gates else o for o in self.cell
        )

    def run(
        self,
        *inputs: Any,
        wanted: Iterable[str],
        added: Mapping[str, Any] | None = None,
        factors: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the values `(batch, time, …)` of the `wanted` operations of the cell, by name.

        `inputs` are the sequence; optionally the initial states `(batch, …)`, otherwise zeros; and
        the mask `(batch, time)`, if there is one. Operations' values are multiplied by `factors`
        and increased by `added`, `(batch, time, …)`, before others read them.
        """
        changes, scales, cell = dict(added or {}), dict(factors or {}), self.read()
        names = tuple(wanted)
        x, initial, mask = split_inputs(inputs, self.masked)
        states = list(initial) or [
            ops.zeros((ops.shape(x)[0], *shape), dtype=x.dtype) for shape in self.states.values()
        ]

        def step(states: list[Any], entries: list[Any]) -> tuple[list[Any], list[Any]]:
            values = dict(zip(map(before, self.states), states, strict=True))
            values[SEQUENCE], values[PRESENT] = entries[0], entries[len(sequences) - 1]
            later = entries[len(sequences) :]
            plus = dict(zip(changes, later, strict=False))
            times = dict(zip(scales, later[len(changes) :], strict=True))
            for operation in cell:
                name, inputs = operation.name, (values[source] for source in operation.inputs)
                value = operation.compute(*inputs)
                value = value * times[name] if name in times else value
                values[name] = value + plus[name] if name in plus else value
            return [values[s] for s in self.states], [values[name] for name in names]

        sequences = [self.in_order(x)] if mask is None else [self.in_order(x), mask]
        every = [time_first(s) for s in (*sequences, *changes.values(), *scales.values())]
        _, found = over_time(step, states, every, len(names))
        return {name: time_first(v) for name, v in zip(names, found, strict=True)}

    def place(self, t: int) -> int:
        """Return the index of the sequence's entry that step t reads."""
        return self.steps - 1 - t if self.backwards else t

    def in_order(self, x: Any) -> Any:
        """Convert a sequence `(batch, time, …)` to the order of the steps, or back."""
        return x[:, ::-1] if self.backwards else x

    def members(self, sources: Sequence[int], mask: Source | None) -> list[Step]:
        """Return a step for each cell operation; `sources` are the sequence and initial states."""
        every = tuple(sources) if mask is None else (*sources, mask)

        def member(operation: Operation) -> Step:
            name = operation.name
            return Step(
                RECURRENCE,
                lambda *inputs: self.run(*inputs, wanted=[name])[name],
                Member(self, operation),
                suffix=name,
                sources=every,
                shape=(self.steps, *operation.shape),
                mask=NO_MASK if operation.kind == HELD else mask,
            )

        return [member(operation) for operation in self.cell]


@dataclass(frozen=True, eq=False)
class Member:
    """One of a recurrent layer's operations in the graph; `operation` is its single time step."""

    unrolled: Unrolled
    operation: Operation

    @property
    def kernels(self) -> tuple[Synapses, ...]:
        """The kernels of a gate; empty for other operations."""
        gate = self.operation.params
        return gate.kernels if isinstance(gate, Gate) else ()


@dataclass(frozen=True, eq=False)
class RecurrentLayer:
    """All operations of a recurrent layer, which a backward walk expands together."""

    unrolled: Unrolled
    prefix: str  # of the cell's names in the names of operations
    inputs: tuple[str, ...]  # names of operations

    @property
    def name(self) -> str:
        """Name of the node."""
        return f"{self.prefix} through time"

    @property
    def members(self) -> tuple[str, ...]:
        """Names of its operations."""
        return tuple(self.prefix + operation.name for operation in self.unrolled.cell)

    def inner(self, name: str) -> str:
        """Return the name that one of its operations has in the cell."""
        return name.removeprefix(self.prefix)


def consumers_first(operations: Iterable[Operation]) -> list[Operation | RecurrentLayer]:
    """Return topologically ordered operations in reverse, each recurrent layer as one."""
    order: dict[Any, Operation | RecurrentLayer] = {}
    for operation in operations:
        if isinstance(operation.params, Member):
            unrolled = operation.params.unrolled
            prefix = operation.name.removesuffix(operation.params.operation.name)
            order.setdefault(unrolled, RecurrentLayer(unrolled, prefix, operation.inputs))
        else:
            order[operation.name] = operation
    return list(reversed(order.values()))


def inside(unrolled: Unrolled, operations: Iterable[Operation]) -> list[str]:
    """Return the names in a layer's cell of the operations that belong to it."""
    members = (o.params for o in operations if isinstance(o.params, Member))
    return [member.operation.name for member in members if member.unrolled is unrolled]


def split_inputs(inputs: Sequence[Any], masked: bool) -> tuple[Any, Sequence[Any], Any]:
    """Return the sequence, the initial states and the mask (or None) of a recurrent layer."""
    if masked:
        return inputs[0], inputs[1:-1], inputs[-1]
    return inputs[0], inputs[1:], None


def hold(new: Any, before: Any, present: Any) -> Any:
    """Return the new state `(batch, …)` where there is data, otherwise the previous one."""
    return ops.where(expand_to(present, new) > 0.5, new, before)


def expand_to(present: Any, x: Any) -> Any:
    """Return `present` with trailing axes added until it has as many axes as `x`."""
    return ops.reshape(present, (*ops.shape(present), *(1,) * (len(x.shape) - len(present.shape))))


def time_first(x: Any) -> Any:
    """Swap the first two axes of a tensor."""
    return ops.swapaxes(x, 0, 1)
