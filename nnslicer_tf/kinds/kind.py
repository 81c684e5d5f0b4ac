"""`Kind`: what all analyses need to know about a kind of operation; tables of rules by kind.

It does not import Keras, so that workers start fast.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.operations import Operation


@dataclass(eq=False, repr=False)
class Neurons:
    """The values of an operation's neurons in a batch.

    Args:
        captured: Values of the operation `(batch, *operation shape)` float32.
        mean: The profile's means of the neurons, `(*shape)` float64; the neurons are either all
            elements of the output or its channels.
        relative_to: Quantity that the exclusion is relative to: "output", the neuron's value y,
            or "sum", the sum of its local values.
        mask: 1 for neurons, 0 for padding, where Δ is 0, broadcastable to `captured`; or None.
        product: The factor that multiplies the other factor's Δ in a product: "value", or
            "midpoint", (value + mean) / 2.
        rounding: The largest |Δ| that is rounding alone, and thus 0, `(*shape)` float64.
    """

    captured: np.ndarray
    mean: np.ndarray
    relative_to: str = "output"
    mask: np.ndarray | None = None
    product: str = "value"
    rounding: np.ndarray | float = 0.0

    @classmethod
    def known(
        cls, value: np.ndarray, delta: np.ndarray, sign: np.ndarray, factor: np.ndarray
    ) -> "Neurons":
        """Return neurons `(batch, *shape)` with given Δ, signs, and factor."""
        neurons = cls(value, np.zeros(value.shape[1:]))
        neurons._deltas = delta, sign
        neurons.factor = factor
        return neurons

    def at_time(self, t: int) -> "Neurons":
        """Return the neurons at one index of their first axis, such as a time step."""
        arrays = (self.captured, self.delta, self.sign, self.factor)
        one = Neurons.known(*(array[:, t] for array in arrays))
        one.relative_to = self.relative_to
        return one

    @cached_property
    def value(self) -> np.ndarray:
        """Values `(batch, *shape)` float32."""
        return self._exact.astype(np.float32, copy=False)

    @cached_property
    def factor(self) -> np.ndarray:
        """The factor that multiplies the other factor's Δ in a product, shaped like `value`."""
        if self.product == "value":
            return self.value
        middle = ((self._exact.astype(np.float64) + self.mean) / 2).astype(np.float32)
        present = self._present
        return middle if present is None else np.where(present > 0, middle, self.value)

    @property
    def delta(self) -> np.ndarray:
        """Δ = value − mean, from float64 rounded to float32; 0 where it is `rounding` alone."""
        return self._deltas[0]

    @property
    def sign(self) -> np.ndarray:
        """Signs of Δ, int8."""
        return self._deltas[1]

    @property
    def is_relative_to_sum(self) -> bool:
        """Whether the exclusion is relative to the sum of the local values."""
        return self.relative_to == "sum"

    @property
    def reference(self) -> np.ndarray:
        """What θ is multiplied by, up to its sign, if outputs are linear in inputs: y, or Δy."""
        return self.value if self.relative_to == "output" else self.delta

    @cached_property
    def _deltas(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.mean - self.rounding, self.mean + self.rounding
        delta = (self._exact - self.mean).astype(np.float32)
        delta[(self._exact >= low) & (self._exact <= high)] = 0
        sign = (delta > 0).view(np.int8) - (delta < 0).view(np.int8)
        if self._present is not None:
            delta *= self._present
            sign *= self._present
        return delta, sign

    @cached_property
    def _present(self) -> np.ndarray | None:
        """1 where there is no padding, int8, broadcastable to the values; None if there is none."""
        if self.mask is None:
            return None
        present = np.asarray(self.mask > 0, np.int8)
        if self.captured.ndim != self.mean.ndim + 1:  # a channel exists if any position does
            present = present.reshape(len(present), -1).max(axis=1, keepdims=True)
        return present

    @cached_property
    def _exact(self) -> np.ndarray:
        """The captured values, or the float64 means of the channels over their positions."""
        values = self.captured
        if values.ndim == self.mean.ndim + 1:
            return values
        if self.mask is None:
            return values.reshape(len(values), -1, values.shape[-1]).mean(axis=1, dtype=np.float64)
        weights = np.broadcast_to(self.mask > 0, (*values.shape[:-1], 1)).astype(np.float64)
        axes = tuple(range(1, values.ndim - 1))
        return (values * weights).sum(axis=axes) / np.maximum(weights.sum(axis=axes), 1)


def aligned_mask(mask: Any, rank: int, lead: int = 0) -> Any:
    """Return a mask `(batch, …)`, an array or a tensor, with axes of size 1 appended up to `rank`.

    `lead` further ones come after the batch, for values that were broadcast.
    """
    batch, *shape = mask.shape
    new = (*(1,) * lead, *shape, *(1,) * (rank - 1 - len(shape)))
    if isinstance(mask, np.ndarray):
        return mask.reshape(batch, *new)
    return ops.reshape(mask, (-1, *new))


@dataclass(frozen=True)
class Layout:
    """The granularity of a walk, with the shapes and means of neurons at that granularity."""

    granularity: str  # "activation" or "channel"
    means: Mapping[str, np.ndarray]  # the profile's, operation name → `(*operation shape)` float64
    # The largest deviations that are rounding, as `means`; 0 for operations that it lacks.
    rounding: Mapping[str, np.ndarray] = field(default_factory=dict)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of an operation's neurons: its own shape, or `(channels,)`."""
        return tuple(shape) if self.granularity == "activation" else tuple(shape[-1:])

    def mean(self, name: str) -> np.ndarray:
        """Return the means of an operation's neurons."""
        return self._by_neuron(self.means[name])

    def bound(self, name: str) -> np.ndarray:
        """Return the largest |Δ| of an operation's neurons that is rounding alone."""
        return self._by_neuron(self.rounding.get(name, np.zeros_like(self.means[name])))

    def _by_neuron(self, values: np.ndarray) -> np.ndarray:
        if self.granularity == "channel":
            return values.reshape(-1, *values.shape[-1:]).mean(axis=0)
        return values


@dataclass(frozen=True, eq=False)
class Node:
    """An operation in a backward walk, without Keras.

    Attributes:
        name: The operation's name.
        kind: Its kind.
        inputs: Names of its inputs.
        shape: Shape of its neurons at the walk's granularity.
        mean: The profile's means of its neurons, float64, of that shape.
        rule: Its exclusion rule, which also reaches workers that did not register it.
        table: Result of `Rule.table` for the operation.
        mask: Name of the operation that says which elements are neurons; None if all are.
        members: Names of the operations that it represents, if several are expanded together.
        rounding: The largest |Δ| of its neurons that is rounding alone, as `mean`.
    """

    name: str
    kind: "Kind"
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    mean: np.ndarray
    rule: "Rule | None" = None
    table: Any = None
    mask: str | None = None
    members: tuple[str, ...] = ()
    rounding: np.ndarray | float = 0.0

    def limit(self, value: np.ndarray) -> np.ndarray:
        """Return the least (for a minimum: largest) input that equals an extreme, float32."""
        return value - self.kind.extreme * np.asarray(self.rounding, np.float32)


RuleFunction = Callable[
    [Node, float, np.ndarray, Neurons, Sequence[Neurons]], Sequence[np.ndarray | None]
]
"""`rule(node, theta, signs, output, inputs)` propagates the outputs' CONTRIB to the inputs.

- `signs`: sign(CONTRIB · Δy) of the output neurons, `(batch, *shape)` int8; for a kind that moves
  values, the CONTRIB itself;
- `output`, `inputs`: `Neurons` with `.value` and `.delta`, `(batch, *shape)` float32, and
  `.sign`, the sign of Δ, int8; None for a kind that moves values;
- returns: one integer array for each input, of the input's shape or of the shape to which the
  input was broadcast, or None for an input that gets nothing, such as a mask.
"""

MultiplierRule = Callable[[Operation, list, list, Any], Sequence[Any]]
"""`rule(operation, inputs, reference, multipliers)` returns the multipliers of the inputs, given
those of the output and the inputs' values for sample and reference, tensors `(batch, *shape)`."""


@dataclass(frozen=True)
class Rule:
    """A slicing rule with exclusion (NNSlicer, Table 2), for each granularity.

    Attributes:
        activation: The rule if every element of an operation's output is a neuron.
        channel: The rule if its channels are.
        synapses: Whether the functions take another argument `each`, whether to keep the samples'
            synapses separate, and return a pair: the CONTRIB of the inputs, and of the synapses,
            kernel name → `(batch or 1, *kernel shape)`.
        table: Computes the data that the rule needs about an operation, once per walk; None: none.
    """

    activation: Callable[..., Any]
    channel: Callable[..., Any]
    synapses: bool = False
    table: Callable[[Operation, Layout], Any] | None = None


@dataclass(frozen=True)
class AtZero:
    """A slicing rule at θ = 0, on tensors of the backend.

    Attributes:
        inputs: Maps an operation, g = sign(CONTRIB) · sign(Δy) (CONTRIB for a kind that moves
            values), the sign(Δx) of its inputs and the values by name to their CONTRIB, float32.
        kernels: With the same arguments, returns the synapses' CONTRIB, summed over the batch:
            kernel name → tensor of the kernel's shape. None for a kind without synapses.
        samples: The same for every sample: `(batch, taps, inputs, outputs)`.
    """

    inputs: Callable[..., Sequence[Any]]
    kernels: Callable[..., dict[str, Any]] | None = None
    samples: Callable[..., dict[str, Any]] | None = None


@dataclass(frozen=True)
class Kind:
    """What all analyses need to know about a kind of operation.

    Attributes:
        name: Name of the kind, as in `Step.kind`.
        reach: Inputs of an output: at its own position ("element"), in its "channel", or "any".
        one_to_one: Whether an output is of one input: CONTRIB can pass (`rectify="pass"`).
        moves: Whether operations only move values, and CONTRIB moves unchanged.
        multiplies: Whether inputs are multiplied by each other: `AtZero` rules then get the signs
            of `Neurons.factor` instead of the values.
        by_change: Whether slicing rules get sign(CONTRIB · Δy), or sign(CONTRIB) where Δy is not 0.
        extreme: 1 for a maximum, −1 for a minimum: inputs equal to the output up to rounding get
            contributions, so `AtZero` rules get as its value the least (largest) of such inputs.
    """

    name: str
    reach: Literal["element", "channel", "any"] = "any"
    one_to_one: bool = False
    moves: bool = False
    multiplies: bool = False
    by_change: bool = True
    extreme: int = 0


EXCLUSION: dict[str, Rule] = {}
"""Slicing at any θ. Without an entry, slicing rejects the operation."""

AT_ZERO: dict[str, AtZero] = {}
"""Slicing at θ = 0 on the backend, which is much faster. Without an entry, `EXCLUSION` is used."""

MULTIPLIERS: dict[str, MultiplierRule] = {}
"""DeepLIFT, amounts and the semantic metric (see `rescale`). Without an entry, the gradient halfway
between sample and reference is used."""

_KINDS: dict[str, Kind] = {}


def kind_of(operation: Operation) -> Kind:
    """Return the registered kind of an operation, or one with defaults if it is unknown."""
    return _KINDS.get(operation.kind) or Kind(operation.kind)


def register_kind(
    kind: Kind,
    exclusion: Rule | None = None,
    at_zero: AtZero | None = None,
    multipliers: MultiplierRule | None = None,
) -> None:
    """Register a kind of operation, or replace a registered one.

    Its `name` is the `kind` of the `Step`s that a `register_layer` function returns. Its rules are
    those of `EXCLUSION`, `AT_ZERO` and `MULTIPLIERS`; None leaves the table as it is.
    """
    _KINDS[kind.name] = kind
    rules: Any = (EXCLUSION, exclusion), (AT_ZERO, at_zero), (MULTIPLIERS, multipliers)
    for table, rule in rules:
        if rule is not None:
            table[kind.name] = rule


def register_rule(kind: str, rule: Rule | RuleFunction, at_zero: AtZero | None = None) -> None:
    """Register the rule by which operations of a kind propagate contributions in a slice.

    Args:
        kind: The `kind` of the `Step`s that a `register_layer` function returns.
        rule: A rule function (see `RuleFunction`) for both granularities, or a `Rule`.
        at_zero: The same rule at θ = 0 on the backend; by default, `rule` is used there, too.

    Raises InvalidArgumentError if `rule` is neither, or if the kind has a rule at θ = 0 already,
    which would disagree with the new one, and `at_zero` is missing.
    """
    if not isinstance(rule, Rule):
        if not callable(rule):
            raise InvalidArgumentError(f"Kind {kind!r} needs a function or Rule, not {rule!r}")
        rule = Rule(rule, rule)
    if at_zero is None and kind in AT_ZERO and EXCLUSION.get(kind) != rule:
        raise InvalidArgumentError(
            f"Kind {kind!r} has a rule at θ = 0, which need not agree with the new rule. Pass "
            f"at_zero=AtZero(…), or use the new one there, too: kinds.AT_ZERO.pop({kind!r})."
        )
    EXCLUSION[kind] = rule
    if at_zero is not None:
        AT_ZERO[kind] = at_zero
