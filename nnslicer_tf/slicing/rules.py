"""How an operation hands the CONTRIB of its outputs to its inputs (NNSlicer, Table 2).

A rule is a function `rule(node, theta, signs, output, inputs)`:

- `signs`: sign(CONTRIB · Δy) of the output neurons, `(batch, *shape)` int8;
- `output`, `inputs`: `Neurons` with `.value` and `.delta`, `(batch, *shape)` float32;
- it returns one integer array for each input, shaped as the input, or broadcast.

Weighted sums have synapses too and are expanded by the walker itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.slicing import _kernels
from nnslicer_tf.slicing.program import Node

__all__ = ["Neurons", "Rule", "register_rule", "rule_for"]


class Neurons:
    """The values of an operation's neurons in a batch.

    Args:
        exact: `(batch, *shape)` float32, or float64 for means over positions.
        mean: The profile's means, `(*shape)` float64.
    """

    def __init__(self, exact: np.ndarray, mean: np.ndarray) -> None:
        self._exact = exact
        self._mean = mean

    @cached_property
    def value(self) -> np.ndarray:
        """Values `(batch, *shape)` float32."""
        return self._exact.astype(np.float32, copy=False)

    @cached_property
    def delta(self) -> np.ndarray:
        """Δ = value − mean, computed in float64 and rounded to float32."""
        return np.subtract(self._exact, self._mean, dtype=np.float64).astype(np.float32)


RuleFunction = Callable[[Node, float, np.ndarray, Neurons, Sequence[Neurons]], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Rule:
    """A rule for each granularity."""

    activation: RuleFunction
    channel: RuleFunction


_RULES: dict[str, Rule] = {}


def register_rule(kind: str, rule: Rule | RuleFunction) -> None:
    """Say how the operations of a kind hand on contributions.

    Args:
        kind: The `kind` of the `Step`s that a `register_layer` function returns.
        rule: A rule function (see this module) for both granularities, or a `Rule`.

    Raises:
        InvalidArgumentError: if `rule` is neither.
    """
    if not isinstance(rule, Rule):
        if not callable(rule):
            raise InvalidArgumentError(
                f"A rule is a function or a Rule. Received for kind {kind!r}: {rule!r}"
            )
        rule = Rule(rule, rule)
    _RULES[kind] = rule


def rule_for(kind: str, granularity: str) -> RuleFunction | None:
    """Return the rule of a kind, None if it has none."""
    rule = _RULES.get(kind)
    return None if rule is None else getattr(rule, granularity)


def _one_to_one(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Scale, elementwise: sign(CONTRIB · Δy · Δx)."""
    return [signs * _sign(inputs[0].delta)]


def _rectify(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """The same where the (mean) output is positive, which is where the input is."""
    return [signs * _sign(inputs[0].delta) * (output.value > 0)]


def _average(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Average pooling: local values Δx / k, with exclusion."""
    dx = _flat(inputs[0].delta)
    received = _kernels.average(_flat(signs), _flat(output.value), dx, node.table, theta)
    return [received.reshape(inputs[0].value.shape)]


def _maximum(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Maximum pooling: every input equal to the output."""
    x = inputs[0]
    received = _kernels.maximum(
        _flat(signs), _flat(output.value), _flat(x.value), _flat(x.delta), node.table
    )
    return [received.reshape(x.value.shape)]


def _maximum_merge(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Maximum or minimum of tensors: every tensor equal to the output."""
    return [signs * _sign(x.delta) * (x.value == output.value) for x in inputs]


def _channel_maximum_merge(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """The maximum of means is not the mean of maxima: every channel passes."""
    return [signs * _sign(x.delta) for x in inputs]


def _add(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    return _merge(theta, signs, output, [x.delta.astype(np.float64) for x in inputs])


def _subtract(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    first, *others = (x.delta.astype(np.float64) for x in inputs)
    return _merge(theta, signs, output, [first, *(-other for other in others)])


def _multiply(
    node: Node, theta: float, signs: np.ndarray, output: Neurons, inputs: Sequence[Neurons]
) -> list[np.ndarray]:
    """Δx_i times the values of the other factors."""
    values = []
    for i, x in enumerate(inputs):
        product = x.delta.astype(np.float64)
        for k, other in enumerate(inputs):
            if k != i:
                product = product * other.value
        values.append(product)
    return _merge(theta, signs, output, values)


def _merge(
    theta: float, signs: np.ndarray, output: Neurons, values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    shape = signs.shape
    stacked = np.stack([np.broadcast_to(v, shape).ravel() for v in values])
    received = _kernels.merge(signs.ravel(), output.value.ravel(), stacked, theta)
    return [r.reshape(shape) for r in received]


def _sign(x: np.ndarray) -> np.ndarray:
    return np.sign(x).astype(np.int8)


def _flat(x: np.ndarray) -> np.ndarray:
    """Return `(batch, positions, channels)`."""
    return np.ascontiguousarray(x).reshape(len(x), -1, x.shape[-1])


for _kind, _rule in {
    "scale": _one_to_one,
    "elementwise": _one_to_one,
    "rectify": _rectify,
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "average": Rule(_average, _one_to_one),
    "maximum": Rule(_maximum, _one_to_one),
    "maximum_merge": Rule(_maximum_merge, _channel_maximum_merge),
    "minimum_merge": Rule(_maximum_merge, _channel_maximum_merge),
}.items():
    register_rule(_kind, _rule)
