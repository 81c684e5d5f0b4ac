"""Gates of recurrent layers: weighted sums over several inputs under one exclusion.

All functions process the gates of a cell that read the same inputs together, with one call of the
kernel. From each input, they read the positions given by a table of taps; a dense gate has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf._kernels import sums
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.layout import KernelLayout
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.instrument.recurrence import Gate, Weights
from nnslicer_tf.kinds._windows import flat, windows
from nnslicer_tf.kinds.kind import Neurons, Node, kind_of

ops: Any = LazyModule("keras.ops")


@dataclass(frozen=True, eq=False)
class Columns:
    """A gate's columns of a kernel."""

    kernel: KernelLayout
    start: int
    stop: int

    def add_to(self, synapses: dict[str, np.ndarray], matrix: np.ndarray) -> None:
        """Add contributions `(batch or 1, taps, inputs, columns)` to the kernel's."""
        whole = self.kernel.to_kernel(self.widened(matrix))
        name = self.kernel.name
        synapses[name] = synapses[name] + whole if name in synapses else whole

    def widened(self, matrix: np.ndarray) -> np.ndarray:
        """Return the matrix with zeros in all other columns."""
        rest = ((0, 0),) * (matrix.ndim - 1)
        return np.pad(matrix, (*rest, (self.start, self.kernel.shape[-1] - self.stop)))


@dataclass(frozen=True, eq=False)
class _Read:
    """How the gates read one of their inputs.

    Attributes:
        taps: Input position of each tap, `(output positions, taps)` int32, -1 for padding.
        columns: The columns of each gate.
    """

    taps: np.ndarray
    columns: tuple[Columns, ...]


@dataclass(frozen=True, eq=False)
class GatesTable:
    """Data for the exclusion of gates with the same inputs.

    Attributes:
        reads: How each input is read.
        weights: `(1, outputs of all gates, local values)` float32.
    """

    reads: tuple[_Read, ...]
    weights: np.ndarray


def gates_node(operations: Sequence[Operation]) -> Node:
    """Return the node that represents the gates of a cell with the same inputs."""
    gates: list[Gate] = [operation.params for operation in operations]
    reads, parts = [], []
    for of_input in zip(*(gate.weights for gate in gates), strict=True):
        matrix = np.concatenate([w.columns(w.kernel.matrix()) for w in of_input], axis=-1)
        parts.append(matrix.reshape(-1, matrix.shape[-1]).T)
        columns = tuple(Columns(w.kernel.layout, w.start, w.stop) for w in of_input)
        reads.append(_Read(of_input[0].kernel.taps, columns))
    names = tuple(operation.name for operation in operations)
    return Node(
        name=" ".join(names),
        kind=kind_of(operations[0]),
        inputs=operations[0].inputs,
        shape=operations[0].shape,
        mean=np.zeros(0),
        table=GatesTable(tuple(reads), np.ascontiguousarray(np.hstack(parts))[None]),
        members=names,
    )


def expand_gates(
    table: GatesTable,
    theta: float,
    signs: np.ndarray,
    reference: np.ndarray,
    inputs: Sequence[Neurons],
    synapses: dict[str, np.ndarray],
    each: bool,
    amounts: bool = False,
) -> list[np.ndarray]:
    """Return the contributions of the inputs, and add those of the synapses to `synapses`.

    Args:
        table: The gates.
        theta: Threshold θ.
        signs: sign(CONTRIB · Δy) of the outputs of all gates, `(batch, *space, outputs)` int8.
        reference: Values that θ is multiplied by, of the same shape.
        inputs: The inputs.
        synapses: Kernel name → contributions so far; changed in place.
        each: Keep the synapses' contributions of each sample separate.
        amounts: Whether `signs` are multipliers, and contributions amounts.
    """
    changes = None
    if amounts:
        parts = [_gather(flat(x.change), r.taps) for x, r in zip(inputs, table.reads, strict=True)]
        changes = np.concatenate(parts, axis=2)
    gathered = [_gather(flat(x.delta), r.taps) for x, r in zip(inputs, table.reads, strict=True)]
    positions = len(table.reads[0].taps)
    shape = (len(signs), positions, -1)
    received, collected = sums.weighted_sum(
        signs.reshape(shape),
        reference.reshape(shape),
        np.concatenate(gathered, axis=2),
        table.weights,
        np.arange(positions, dtype=np.int32)[:, None],
        theta,
        each,
        changes=changes,
    )
    ends = np.cumsum([part.shape[2] for part in gathered])[:-1]
    parts = []
    for x, read, to_input, of_kernel in zip(
        inputs,
        table.reads,
        np.split(received, ends, axis=2),
        np.split(collected[:, 0], ends, axis=2),
        strict=True,
    ):
        parts.append(_scatter(to_input, read.taps, x.value.shape))
        _collect(read, of_kernel, synapses)
    return parts


def _collect(read: _Read, collected: np.ndarray, synapses: dict[str, np.ndarray]) -> None:
    """Add `(batch or 1, outputs of all gates, local values)` to the kernels' contributions."""
    samples, outputs, width = collected.shape
    taps = read.taps.shape[1]
    matrix = collected.transpose(0, 2, 1).reshape(samples, taps, width // taps, outputs)
    for columns, part in zip(
        read.columns, np.split(matrix, len(read.columns), axis=-1), strict=True
    ):
        columns.add_to(synapses, part)


def _gather(x: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Return the values of `(batch, positions, channels)` that the taps read, side by side."""
    padded = np.pad(x, ((0, 0), (0, 1), (0, 0)))  # padding reads the zero at the end
    return padded[:, taps].reshape(len(x), len(taps), -1)


def _scatter(received: np.ndarray, taps: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Add the values that the taps received to the positions that they read."""
    batch, channels = len(received), shape[-1]
    total = np.zeros((batch, int(np.prod(shape[1:-1])) + 1, channels), received.dtype)
    by_tap = received.reshape(batch, len(taps), -1, channels)
    for k, read in enumerate(taps.T):  # no two outputs read the same position with one tap
        total[:, read] += by_tap[:, :, k]
    return total[:, :-1].reshape(shape)


@dataclass(frozen=True, eq=False)
class GatesAtZero:
    """Gates with the same inputs at θ = 0, on tensors of the backend.

    Args:
        operations: The gates of one time step.
    """

    operations: tuple[Operation, ...]

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the gates."""
        return tuple(operation.name for operation in self.operations)

    @property
    def name(self) -> str:
        """Name of the node."""
        return " ".join(self.members)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the operations that the gates read."""
        return self.operations[0].inputs

    def weight_signs(self) -> list[Any]:
        """Return the signs of the weights for each input, with all gates side by side."""
        return [
            ops.concatenate([_signs(w) for w in of_input], axis=-1) for of_input in self._weights()
        ]

    def expand(self, g: Any, signs: Sequence[Any], weight_signs: Sequence[Any]) -> list[Any]:
        """Return the contributions of the inputs.

        Args:
            g: sign(CONTRIB) · sign(Δy) of the outputs of all gates, side by side.
            signs: Signs of the inputs' Δ.
            weight_signs: Result of the method `weight_signs`.
        """
        received = []
        for of_input, x, weights in zip(self._weights(), signs, weight_signs, strict=True):
            apply = of_input[0].kernel.apply
            (part,) = vector_jacobian_product(lambda v, a=apply, w=weights: a(v, w), [x], g)
            received.append(x * part)
        return received

    def synapses(self, g: Any, signs: Sequence[Any]) -> dict[str, list[tuple[Weights, Any]]]:
        """Return the contributions of the synapses for each sample, summed over time.

        Args:
            g: As for `expand`, at all times, `(batch, time, …)`.
            signs: Signs of the inputs' Δ at all times.

        Returns:
            Kernel name → for each gate its weights, and `(batch, taps, inputs, units)`.
        """
        found: dict[str, list[tuple[Weights, Any]]] = {}
        for place, (of_input, x) in enumerate(zip(self._weights(), signs, strict=True)):
            shape = self.operations[0].input_shapes[place]
            taps = of_input[0].kernel.taps
            batch, steps = ops.shape(g)[0], g.shape[1]
            read = windows(shape, ops.reshape(x, (-1, *shape)), taps)
            read = ops.reshape(read, (batch, steps * len(taps), taps.shape[1], shape[-1]))
            by_position = ops.reshape(g, (batch, steps * len(taps), g.shape[-1]))
            gradient = ops.einsum("bpti,bpo->btio", read, by_position)
            parts = ops.split(gradient, len(of_input), axis=-1)
            for weights, part in zip(of_input, parts, strict=True):
                signs_of = weights.columns(
                    weights.kernel.tensor_from_kernel(_kernel_signs(weights))
                )
                found.setdefault(weights.kernel.name, []).append((weights, part * signs_of))
        return found

    def _weights(self) -> list[tuple[Weights, ...]]:
        """Return the weights of all gates, grouped by input."""
        return list(zip(*(operation.params.weights for operation in self.operations), strict=True))


def joined_columns(parts: Sequence[tuple[Weights, Any]]) -> Any:
    """Join the values of gates to their kernel's `(batch, taps, inputs, outputs)`."""
    ordered = sorted(parts, key=lambda part: part[0].start)
    return ops.concatenate([value for _, value in ordered], axis=-1)


def _signs(weights: Weights) -> Any:
    return weights.columns(_kernel_signs(weights))


def _kernel_signs(weights: Weights) -> Any:
    return ops.sign(ops.cast(weights.kernel.variable(), "float32"))
