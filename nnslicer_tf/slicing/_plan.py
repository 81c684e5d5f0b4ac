"""`Plan`: all that a backward walk needs to know about a model, without Keras.

A plan is sent to each worker once. It is as large as the kernels and the profile together.
"""

from dataclasses import dataclass, field

import numpy as np

from nnslicer_tf.instrument.layout import KernelLayout
from nnslicer_tf.kinds import Kind, Node


@dataclass(frozen=True)
class Start:
    """The neurons at which a walk starts."""

    neurons: dict[str, np.ndarray]  # operation → row-major indices of neurons with CONTRIB 1
    predicted: bool  # start at each sample's largest logit instead, of a map at each position
    axis: int = -1  # of the logits, with one for each class


@dataclass(frozen=True, eq=False)
class Plan:
    """A backward walk, ready to run on captured activations; its settings are those of `Slicer`."""

    nodes: dict[str, Node]  # in topological order
    expanded: tuple[Node, ...]  # in the order of the walk
    captured: tuple[str, ...]  # operations whose values the walk reads
    start: Start
    logits: str
    kernels: dict[str, KernelLayout] = field(repr=False)  # all of the model, in topological order
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
        return 4 * sum(kernel.size for kernel in self.kernels.values())

    @property
    def is_amount(self) -> bool:
        """Whether contributions are amounts, not counts."""
        return self.contribution == "amount"

    def passes(self, kind: Kind) -> bool:
        """Return whether operations of a kind propagate CONTRIB unchanged."""
        return self.rectify == "pass" and kind.one_to_one

    def seed(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        """Return the initial CONTRIB for a batch's logits: operation → `(batch, *shape)` int32."""
        batch = len(logits)
        if self.start.predicted:
            seed, axis = np.zeros(logits.shape, np.int32), self.start.axis
            np.put_along_axis(seed, logits.argmax(axis, keepdims=True), 1, axis)
            return {self.logits: seed}
        seeds = {}
        for name, indices in self.start.neurons.items():
            shape = self.nodes[name].shape
            seed = np.zeros((batch, int(np.prod(shape))), np.int32)
            seed[:, indices] = 1
            seeds[name] = seed.reshape(batch, *shape)
        return seeds
