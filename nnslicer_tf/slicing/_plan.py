"""`Plan`: all that a backward walk needs to know about a model, without Keras.

A plan is sent to each worker once. It is as large as the kernels and the profile together.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnslicer_tf.instrument.layout import KernelLayout
from nnslicer_tf.kinds import Kind, Node

REFERENCE, SLOPES = "reference of ", "slopes of "
"""Prefixes of the names of captured reference values and slopes."""


@dataclass(frozen=True)
class Start:
    """The neurons at which a walk starts.

    Attributes:
        neurons: Operation name → row-major indices of the neurons with CONTRIB 1.
        predicted: Whether each sample starts at its own largest logit instead.
    """

    neurons: dict[str, np.ndarray]
    predicted: bool


@dataclass(frozen=True, eq=False)
class AmountTables:
    """What a walk with amounts needs, in addition, to exclude inputs.

    Attributes:
        nodes: Name → node with all elements as neurons.
        data: Name of an operation, or of one of a recurrent layer → `amounts.data_of` of it.
        tokens: Names of operations that hold tokens, or only move them.
        slopes: Names of the operations whose slopes are captured.
    """

    nodes: dict[str, Node]
    data: dict[str, Any]
    tokens: frozenset[str]
    slopes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """A backward walk, ready to run on captured activations.

    Attributes:
        nodes: Name → node, in topological order.
        expanded: The nodes to expand, in the order of the walk.
        captured: Names of the operations whose values the walk needs.
        start: The neurons at which the walk starts.
        logits: Name of the operation with the logits.
        kernels: Name → layout of each of the model's kernels, in topological order.
        amounts: Tables for amounts with exclusion; otherwise None.
        theta, granularity, relative_to, rectify, product, contribution: As in `Slicer`.
    """

    nodes: dict[str, Node]
    expanded: tuple[Node, ...]
    captured: tuple[str, ...]
    start: Start
    logits: str
    kernels: dict[str, KernelLayout] = field(repr=False)
    amounts: AmountTables | None
    theta: float
    granularity: str
    relative_to: str
    rectify: str
    product: str
    contribution: str

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Operation name → shape of its neurons."""
        return {name: node.shape for name, node in self.nodes.items()}

    @property
    def synapse_bytes(self) -> int:
        """Size in bytes of the contributions of all synapses, int32."""
        return 4 * sum(int(np.prod(kernel.shape)) for kernel in self.kernels.values())

    @property
    def is_amount(self) -> bool:
        """Whether contributions are amounts, not counts."""
        return self.contribution == "amount"

    def passes(self, kind: Kind) -> bool:
        """Return whether operations of a kind propagate CONTRIB unchanged."""
        return self.rectify == "pass" and kind.one_to_one

    def seed(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        """Return the initial CONTRIB: operation name → `(batch, *shape)` int32.

        Args:
            logits: Values of the logits, `(batch, *shape)`.
        """
        batch = len(logits)
        if self.start.predicted:
            seed = np.zeros(logits.shape, np.int32)
            seed[np.arange(batch), logits.argmax(axis=1)] = 1
            return {self.logits: seed}
        seeds = {}
        for name, indices in self.start.neurons.items():
            shape = self.nodes[name].shape
            seed = np.zeros((batch, int(np.prod(shape))), np.int32)
            seed[:, indices] = 1
            seeds[name] = seed.reshape(batch, *shape)
        return seeds
