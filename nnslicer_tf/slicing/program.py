"""The backward program: all that the walk needs of a model, without Keras.

It is sent once to every worker. Its size is that of the kernels and of the profile.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from nnslicer_tf._layout import KernelLayout

__all__ = ["Links", "Node", "Program", "Start", "SumTable"]


@dataclass(frozen=True)
class Start:
    """Where a walk starts.

    Attributes:
        neurons: Operation name → row-major indices of the neurons with CONTRIB 1.
        predicted: Whether, instead, each sample starts at its own largest logit.
    """

    neurons: dict[str, np.ndarray]
    predicted: bool


@dataclass(frozen=True, eq=False)
class SumTable:
    """A weighted sum as the kernels take it.

    Attributes:
        synapses: Name of the kernel.
        weights: `(groups, outputs per group, taps · inputs per group)` float32.
        taps: `(output positions, taps)` int32.
        tap_means: At channel granularity, the profile's mean of what each tap reads,
            `(taps, inputs)` float64.
    """

    synapses: str
    weights: np.ndarray
    taps: np.ndarray
    tap_means: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Links:
    """The index map of a routing operation, for one of its inputs.

    Attributes:
        sources: Neurons of the input (row-major) …
        targets: … and the neuron of the output that each of them is moved to.
    """

    sources: np.ndarray
    targets: np.ndarray

    @cached_property
    def one_to_one(self) -> bool:
        """Whether no neuron of the input is moved twice."""
        return len(np.unique(self.sources)) == len(self.sources)


@dataclass(frozen=True, eq=False)
class Node:
    """An operation in the backward program.

    Attributes:
        name: The operation's name.
        kind: Its kind.
        inputs: Names of its inputs.
        shape: Shape of its neurons at the program's granularity.
        mean: The profile's means, float64, of that shape.
        table: `SumTable` of a weighted sum, taps of a pooling, list of `Links` of a routing.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    mean: np.ndarray
    table: Any = None


@dataclass(frozen=True, eq=False)
class Program:
    """A backward walk, ready to run on captured activations.

    Attributes:
        nodes: Name → node, in topological order.
        expanded: Names of the nodes to expand, in the order of the walk.
        captured: Names of the operations whose values the walk needs.
        start: Where it starts.
        logits: Name of the operation with the logits.
        theta: Threshold θ.
        granularity: "activation" or "channel".
        kernels: Name → layout of each of the model's kernels, in topological order.
    """

    nodes: dict[str, Node]
    expanded: tuple[str, ...]
    captured: tuple[str, ...]
    start: Start
    logits: str
    theta: float
    granularity: str
    kernels: dict[str, KernelLayout] = field(repr=False)
