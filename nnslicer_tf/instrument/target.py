"""The score that is explained, kept or lost: of a class, or the mean of some neurons' values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import TypeAliasType

from nnslicer_tf._checks import check_target
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.model import InstrumentedModel


@dataclass(frozen=True)
class Target:
    """Neurons of one operation, and the sign with which their mean is a score.

    Attributes:
        operation: Name of the operation; for an output, of its logits.
        neurons: Row-major indices of the neurons.
        answer: Name of the operation with the values that users see, such as the output itself.
        label: The explained class; None for a value.
        sign: 1, or −1 for class 0 of a single sigmoid, whose score is the negated logit.
        against: Neurons of the same operation whose mean is subtracted: of a class that is compared
            with the explained one. Empty for none.
    """

    operation: str
    neurons: tuple[int, ...]
    answer: str
    label: int | None = None
    sign: int = 1
    against: tuple[int, ...] = ()

    def weights(self, size: int) -> np.ndarray:
        """Return the weight of each neuron in the score, `(size,)` float32."""
        weights = np.zeros(size, np.float32)
        weights[list(self.neurons)] = self.sign / len(self.neurons)
        weights[list(self.against)] -= self.sign / max(len(self.against), 1)
        return weights


TargetLike = TypeAliasType("TargetLike", int | tuple | Mapping[str, Any] | Target)
"""A target in one of these forms:

- an int: a class, or the value of a model with a single output (both classes of one sigmoid: 0, 1);
- a tuple of ints and slices, such as `np.s_[2:5, 3, 0]`: a pixel or region of a map;
- `{name: neurons}`: neurons of an output or inner operation by name: an index, a list of row-major
  indices, a tuple as above, or "all".
"""


def is_classifier(im: InstrumentedModel) -> bool:
    """Whether the model's only output is a vector of classes; one linear output is a value."""
    is_vector = len(im[im.logit_operation].shape) == 1
    return len(im.output_operations) == 1 and is_vector and not im.classes.is_number


def predicted_target(im: InstrumentedModel, logits: Any) -> TargetLike | None:
    """Return the predicted class of a sample, or the only value; None if there are several values.

    `logits` are the first output's, `(1, …)`: they differ where probabilities, rounded, are equal.
    """
    if is_classifier(im):
        return int(im.classes.from_logits(logits)[0])
    if im[im.logit_operation].size == 1 and len(im.output_operations) == 1:
        return {next(iter(im.outputs)): "all"}
    return None


def resolve_target(
    im: InstrumentedModel, target: TargetLike, instead_of: TargetLike | None = None
) -> Target:
    """Return a target, checked against a model.

    With `instead_of`, another class or other neurons of the same operation, the score is the
    difference of both: "why this class and not that one?"
    """
    if instead_of is not None:
        one, other = resolve_target(im, target), resolve_target(im, instead_of)
        if one.operation != other.operation or one == other:
            raise InvalidArgumentError(
                "A target can be compared with another class, or other neurons, of the same "
                f"operation. Received: target={target!r}, instead_of={instead_of!r}"
            )
        if one.neurons == other.neurons:  # both classes of one logit
            return one
        return replace(one, against=other.neurons)
    if isinstance(target, Target):
        return target
    if isinstance(target, Mapping):
        if len(target) != 1:
            raise InvalidArgumentError(f"A target has one operation. Received: {list(target)}")
        ((name, chosen),) = target.items()
        answer = im.outputs.get(name, name)
        operation = im.logit_operation_of(name) if name in im.outputs else im[name].name
        return Target(operation, _neurons(chosen, name, im[operation].shape), answer)
    shape, answer = im[im.logit_operation].shape, im.output_operations[0]
    names = ", ".join(map(repr, im.outputs))
    if len(im.output_operations) > 1:
        raise InvalidArgumentError(
            f"Name one of the outputs {names}: target={{name: index}}. Received: {target!r}"
        )
    if isinstance(target, tuple):
        return Target(im.logit_operation, _neurons(target, names, shape), answer)
    if len(shape) != 1:
        raise InvalidArgumentError(
            f"Output {names} is a map of shape {shape}. Name a pixel or a region of it: "
            f"target=np.s_[{', '.join('0' for _ in shape)}]. Received: {target!r}"
        )
    if target is None:
        raise InvalidArgumentError(f"Choose a value of {names}: target=0 … {shape[0] - 1}.")
    check_target(target, im.classes.count)
    neuron, sign = im.classes.neuron(int(target))
    label = int(target) if is_classifier(im) else None
    return Target(im.logit_operation, (neuron,), answer, label, sign)


def _neurons(chosen: Any, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return row-major indices of chosen neurons."""
    every = np.arange(int(np.prod(shape)))
    if isinstance(chosen, str) and chosen == "all":
        return tuple(every.tolist())
    try:
        if isinstance(chosen, (bool, np.bool_)):
            raise TypeError("a bool would choose all neurons")
        indexed = every.reshape(shape)[chosen] if isinstance(chosen, tuple) else every[chosen]
    except (IndexError, TypeError) as error:
        raise InvalidArgumentError(
            f"{name} has neurons of shape {shape}. Give an index, or 'all'. Received: {chosen!r}"
        ) from error
    if not np.size(indexed):
        raise InvalidArgumentError(f"{chosen!r} selects no neuron of {name}.")
    return tuple(np.unique(indexed).tolist())
