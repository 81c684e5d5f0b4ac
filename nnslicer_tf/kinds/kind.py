"""What the analyses know of a kind of operation, and the registry of kinds.

Free of Keras, so that a worker that walks backwards starts fast.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.operations import Operation

__all__ = [
    "Kind",
    "Layout",
    "Neurons",
    "Node",
    "Rule",
    "RuleFunction",
    "Transformer",
    "for_operation",
    "kind_of",
    "register_kind",
    "register_rule",
    "register_transformer",
]


class Neurons:
    """The values of an operation's neurons in a batch.

    Args:
        captured: Values of the operation `(batch, *operation shape)` float32.
        mean: The profile's means of the neurons, `(*shape)` float64: of all, or of the channels.
    """

    def __init__(self, captured: np.ndarray, mean: np.ndarray) -> None:
        self.captured = captured
        self._mean = mean

    @cached_property
    def value(self) -> np.ndarray:
        """Values `(batch, *shape)` float32."""
        return self._exact.astype(np.float32, copy=False)

    @cached_property
    def delta(self) -> np.ndarray:
        """Δ = value − mean, computed in float64 and rounded to float32."""
        delta = np.empty(self._exact.shape, np.float32)
        return np.subtract(
            self._exact, self._mean, out=delta, dtype=np.float64, casting="same_kind"
        )

    @cached_property
    def _exact(self) -> np.ndarray:
        """The values themselves, or float64 means of the channels over their positions."""
        values = self.captured
        if values.ndim == self._mean.ndim + 1:
            return values
        return values.reshape(len(values), -1, values.shape[-1]).mean(axis=1, dtype=np.float64)


@dataclass(frozen=True)
class Layout:
    """How a walk sees the model.

    Attributes:
        granularity: "activation" or "channel".
        means: Operation name → the profile's means `(*operation shape)` float64.
    """

    granularity: str
    means: Mapping[str, np.ndarray]

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the neurons of an operation: all, or one for each channel."""
        return tuple(shape) if self.granularity == "activation" else tuple(shape[-1:])

    def mean(self, name: str) -> np.ndarray:
        """Return the means of an operation's neurons."""
        mean = self.means[name]
        if self.granularity == "channel":
            return mean.reshape(-1, mean.shape[-1]).mean(axis=0)
        return mean


@dataclass(frozen=True, eq=False)
class Node:
    """An operation in a backward walk, without Keras.

    Attributes:
        name: The operation's name.
        kind: What the walk knows of its kind.
        inputs: Names of its inputs.
        shape: Shape of its neurons at the walk's granularity.
        mean: The profile's means of its neurons, float64, of that shape.
        table: What `Kind.table` made of the operation.
    """

    name: str
    kind: "Kind"
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    mean: np.ndarray
    table: Any = None


RuleFunction = Callable[[Node, float, np.ndarray, Neurons, Sequence[Neurons]], Sequence[np.ndarray]]
"""`rule(node, theta, signs, output, inputs)`: how the outputs' CONTRIB reaches the inputs.

- `signs`: sign(CONTRIB · Δy) of the output neurons, `(batch, *shape)` int8;
- `output`, `inputs`: `Neurons` with `.value` and `.delta`, `(batch, *shape)` float32;
- it returns one integer array for each input, shaped as the input, or as it was broadcast.
"""

SynapseRule = Callable[..., tuple[np.ndarray, np.ndarray]]
"""The same with a further argument `each` (keep the synapses of every sample apart); returns
what the only input receives, and the kernel's contributions `(batch or 1, *kernel shape)`."""

PathRule = Callable[[np.ndarray, np.ndarray, list[np.ndarray], float], Sequence[np.ndarray]]
"""`rule(path, output, inputs, theta)`; see `Kind.path`."""

Transformer = Callable[..., Any]
"""From the `Curve`s of an operation's inputs to the `Curve` of its output."""


@dataclass(frozen=True)
class Rule:
    """A slicing rule for each granularity."""

    activation: RuleFunction
    channel: RuleFunction


def _no_table(operation: Operation, layout: Layout) -> None:
    """Return nothing: most rules need only values."""


@dataclass(frozen=True, eq=False)
class Kind:
    """All that the analyses know of one kind of operation.

    An analysis whose entry is None refuses operations of the kind.

    Attributes:
        name: Name of the kind, as in `Step.kind`.
        reach: What an output depends on: "element" (the inputs at its own place), "channel"
            (its own channel), "any".
        rule: The exclusion rule (NNSlicer, Table 2).
        synapse_rule: In its place, that of a kind with synapses.
        move: In its place, that of a kind that only moves values: from a node and its
            CONTRIB `(batch, *shape)` to that of each input.
        table: What the rule needs of an operation, computed once for a walk.
        at_zero: The rule at θ = 0 on tensors of the backend: from an operation,
            g = sign(CONTRIB) · sign(Δy) (a kind that moves values: CONTRIB), the sign(Δx) of
            its inputs and the values by name, to what each input receives, float32.
        rescale: DeepLIFT's rule: from an operation, its inputs, the reference inputs and the
            multipliers of its output to those of its inputs (Shrikumar et al., ICML 2017).
        path: Makes the operation's rule of effective paths: from which of its outputs are on
            the path (bool), its value, its inputs' values and θ, for one sample, to which of
            its inputs are (Qiu et al., CVPR 2019).
        line: Makes the operation's transformer of exact lines (Sotoudeh and Thakur, NeurIPS
            2019), or raises UnsupportedLayerError if it is not piecewise linear.
    """

    name: str
    reach: Literal["element", "channel", "any"] = "any"
    rule: Rule | None = None
    synapse_rule: SynapseRule | None = None
    move: Callable[[Node, np.ndarray], Sequence[np.ndarray]] | None = None
    table: Callable[[Operation, Layout], Any] = _no_table
    at_zero: Callable[..., Sequence[Any]] | None = None
    rescale: Callable[..., Sequence[Any]] | None = None
    path: Callable[[Operation], PathRule] | None = None
    line: Callable[[Operation], Transformer] | None = None

    @property
    def can_slice(self) -> bool:
        """Whether there is a rule for slices."""
        return any(rule is not None for rule in (self.rule, self.synapse_rule, self.move))


_KINDS: dict[str, Kind] = {}


def kind_of(operation: Operation) -> Kind:
    """Return what is known of an operation's kind; of an unknown one, nothing."""
    return _KINDS.get(operation.kind) or Kind(operation.kind)


def for_operation(rule: Callable[..., Any]) -> Callable[[Operation], Callable[..., Any]]:
    """Return what binds a rule's first argument to an operation."""
    return partial(partial, rule)


def register_kind(kind: Kind) -> None:
    """Add a kind of operation, or replace what is known of one.

    Args:
        kind: Its `name` is the `kind` of the `Step`s that a `register_layer` function returns.
    """
    _KINDS[kind.name] = kind


def register_rule(kind: str, rule: Rule | RuleFunction) -> None:
    """Say how the operations of a kind propagate contributions in a slice.

    Args:
        kind: The `kind` of the `Step`s that a `register_layer` function returns.
        rule: A rule function (see `RuleFunction`) for both granularities, or a `Rule`.

    Raises:
        InvalidArgumentError: if `rule` is neither.
    """
    if not isinstance(rule, Rule):
        if not callable(rule):
            raise InvalidArgumentError(
                f"A rule is a function or a Rule. Received for kind {kind!r}: {rule!r}"
            )
        rule = Rule(rule, rule)
    known = _KINDS.get(kind, Kind(kind))
    _KINDS[kind] = replace(known, rule=rule, synapse_rule=None, move=None, at_zero=None)


def register_transformer(kind: str, build: Callable[[Operation], Transformer]) -> None:
    """Say how the operations of a kind act on exact lines.

    Args:
        kind: The `kind` of `Step`s, one of your own or of `nnslicer_tf.instrument.KINDS`.
        build: From an operation to its transformer; called once for every walker.
    """
    _KINDS[kind] = replace(_KINDS.get(kind, Kind(kind)), line=build)
