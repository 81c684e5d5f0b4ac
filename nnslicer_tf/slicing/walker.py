"""The backward walk of one batch (NNSlicer, Algorithm 1), operation by operation.

Every operation is processed once, after all its consumers. Single-threaded; memory is
a few arrays of the size of the batch's activations.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nnslicer_tf.slicing import _kernels
from nnslicer_tf.slicing.program import Links, Node, Program, SumTable
from nnslicer_tf.slicing.rules import Neurons, rule_for

__all__ = ["Contributions", "walk"]


@dataclass(frozen=True, eq=False)
class Contributions:
    """CONTRIB of a batch.

    Attributes:
        neurons: Operation name → `(batch, *neuron shape)` int32; operations that the walk
            did not reach are left out.
        synapses: Kernel name → `(batch or 1, *kernel shape)` int32, summed over the batch
            unless samples are kept apart.
    """

    neurons: dict[str, np.ndarray]
    synapses: dict[str, np.ndarray]


def walk(program: Program, captured: Mapping[str, np.ndarray], each: bool) -> Contributions:
    """Return the contributions of every sample of a batch.

    Args:
        program: The backward program.
        captured: Values `(batch, *operation shape)` float32 of `program.captured`.
        each: Keep the synapses of every sample apart.
    """
    state = _Walk(program, captured, each)
    for name in program.expanded:
        if name in state.contributions:
            state.expand(program.nodes[name])
    return Contributions(state.contributions, state.synapses)


class _Walk:
    """The contributions so far, and the values on which the rules work."""

    def __init__(self, program: Program, captured: Mapping[str, np.ndarray], each: bool) -> None:
        self._program = program
        self._captured = captured
        self._each = each
        self._neurons: dict[str, Neurons] = {}
        self._batch = len(captured[program.logits])
        self.contributions: dict[str, np.ndarray] = {}
        self.synapses: dict[str, np.ndarray] = {}
        self._start()

    def expand(self, node: Node) -> None:
        """Hand the contributions of one operation on to its inputs."""
        if node.kind == "routing":
            self._move(node)
            return
        output = self._values(node.name)
        signs = np.sign(self.contributions[node.name]).astype(np.int8)
        signs *= np.sign(output.delta).astype(np.int8)
        if node.kind == "weighted_sum":
            self._expand_sum(node, node.table, signs, output)
            return
        rule = rule_for(node.kind, self._program.granularity)
        inputs = [self._values(name) for name in node.inputs]
        received = rule(node, self._program.theta, signs, output, inputs)
        for name, contribution in zip(node.inputs, received, strict=True):
            self._add(name, contribution)

    def _start(self) -> None:
        origin = self._program.start
        if origin.predicted:
            logits = self._captured[self._program.logits]
            start = np.zeros(logits.shape, np.int32)
            start[np.arange(len(logits)), logits.argmax(axis=1)] = 1
            self._add(self._program.logits, start)
        for name, indices in origin.neurons.items():
            start = np.zeros((self._batch, int(np.prod(self._shape(name)))), np.int32)
            start[:, indices] = 1
            self._add(name, start.reshape(self._batch, *self._shape(name)))

    def _expand_sum(self, node: Node, table: SumTable, signs: np.ndarray, output: Neurons) -> None:
        dx, taps = self._sum_inputs(node, table)
        shape = (self._batch, len(taps), -1)
        inputs, synapses = _kernels.weighted_sum(
            signs.reshape(shape),
            output.value.reshape(shape),
            dx,
            table.weights,
            taps,
            self._program.theta,
            self._each,
        )
        if self._program.granularity == "channel":
            inputs = inputs.sum(axis=1, dtype=np.int32)
        self._add(node.inputs[0], inputs.reshape(self._batch, *self._shape(node.inputs[0])))
        self._add_synapses(table, synapses)

    def _sum_inputs(self, node: Node, table: SumTable) -> tuple[np.ndarray, np.ndarray]:
        """Return Δ of the inputs `(batch, positions, channels)`, and the taps on them."""
        source = node.inputs[0]
        if self._program.granularity == "activation":
            delta = self._values(source).delta
            return delta.reshape(self._batch, -1, delta.shape[-1]), table.taps
        # One window for each filter: what each of its taps reads on average.
        values = self._captured[source]
        values = values.reshape(self._batch, -1, values.shape[-1])
        means = _kernels.tap_means(values, table.taps)
        taps = np.arange(means.shape[1], dtype=np.int32)[None, :]
        return (means - table.tap_means).astype(np.float32), taps

    def _add_synapses(self, table: SumTable, matrix: np.ndarray) -> None:
        kernel = self._program.kernels[table.synapses]
        samples, groups, outputs, width = matrix.shape
        by_tap = matrix.reshape(samples, groups * outputs, width).transpose(0, 2, 1)
        taps = table.taps.shape[1]
        values = kernel.to_kernel(by_tap.reshape(samples, taps, width // taps, -1))
        if kernel.name in self.synapses:
            self.synapses[kernel.name] += values
        else:
            self.synapses[kernel.name] = values

    def _move(self, node: Node) -> None:
        moved = self.contributions[node.name].reshape(self._batch, -1)
        for name, links in zip(node.inputs, node.table, strict=True):
            received = np.zeros((self._batch, int(np.prod(self._shape(name)))), np.int32)
            _transfer(links, moved, received)
            self._add(name, received.reshape(self._batch, *self._shape(name)))

    def _add(self, name: str, contribution: np.ndarray) -> None:
        shape = (self._batch, *self._shape(name))
        contribution = _sum_to(contribution, shape)
        if name in self.contributions:
            self.contributions[name] += contribution
        else:
            self.contributions[name] = contribution.astype(np.int32)

    def _values(self, name: str) -> Neurons:
        if name not in self._neurons:
            values = self._captured[name]
            if self._program.granularity == "channel":
                by_position = values.reshape(self._batch, -1, values.shape[-1])
                values = by_position.mean(axis=1, dtype=np.float64)
            self._neurons[name] = Neurons(values, self._program.nodes[name].mean)
        return self._neurons[name]

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._program.nodes[name].shape


def _transfer(links: Links, moved: np.ndarray, received: np.ndarray) -> None:
    if links.one_to_one:
        received[:, links.sources] = moved[:, links.targets]
    else:
        np.add.at(received, (slice(None), links.sources), moved[:, links.targets])


def _sum_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum what was broadcast, so that `array` has `shape`."""
    if array.shape == shape:
        return array
    lead = array.ndim - len(shape)
    array = array.sum(axis=tuple(range(1, 1 + lead)), dtype=np.int32)
    stretched = tuple(
        axis
        for axis, (have, want) in enumerate(zip(array.shape, shape, strict=True))
        if want == 1 and have != 1
    )
    return array.sum(axis=stretched, keepdims=True, dtype=np.int32).reshape(shape)
