"""A walk from the logits back through the operations, by a rule for each.

With `gradient_rule` it is back-propagation; with `rescale_rule` it gives DeepLIFT's
multipliers (Shrikumar et al., "Learning Important Features Through Propagating Activation
Differences", ICML 2017, sections 3.2 and 3.5.1). One compiled function does a batch:
twice the forward pass (for the rescale rule: of the samples and of the reference) and one
backward pass.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.gradients import compiled_function, vector_jacobian_product

__all__ = ["Backward", "cross_entropy", "gradient_rule", "label_logit", "rescale_rule"]

Rule = Callable[[Operation, list, list, Any], Sequence[Any]]

# Below this change of an input, the quotient of differences is rounding; the gradient then.
_SMALL = 1e-5


class Backward:
    """Values, reference values and multipliers of chosen operations, batch by batch.

    Args:
        im: A classifier.
        wanted: Names of the operations.
        seed: From logits and labels to the cotangent of the logits.
        rule: From an operation, its inputs, its inputs for the reference, and its output's
            multipliers to its inputs' multipliers.
    """

    def __init__(
        self, im: InstrumentedModel, wanted: Sequence[str], seed: Callable, rule: Rule
    ) -> None:
        self._im = im
        self._wanted = tuple(wanted)
        self._seed = seed
        self._rule = rule
        self._path = _between(im, self._wanted)
        self._run = compiled_function(self._walk)

    def __call__(
        self, x: np.ndarray, y: np.ndarray, reference: np.ndarray
    ) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return operation → (values, reference values, multipliers), `(batch, …)` float32.

        Args:
            x: Samples `(batch, *input shape)`.
            y: Labels `(batch,)`.
            reference: One sample `(1, *input shape)`; the gradient rule does not use it.
        """
        tensors = (ops.convert_to_tensor(a) for a in (x, y.astype(np.int32), reference))
        found = [[ops.convert_to_numpy(t) for t in part] for part in self._run(*tensors)]
        return dict(zip(self._wanted, zip(*found, strict=True), strict=True))

    def _walk(self, x: Any, y: Any, reference: Any) -> tuple[list, list, list]:
        logits = self._im.logit_operation
        values = self._im.compute(x, (logits, *self._wanted))
        references = {
            name: value + ops.zeros_like(values[name])
            for name, value in self._im.compute(reference, (logits, *self._wanted)).items()
        }
        multipliers = {logits: self._seed(values[logits], y)}
        for operation in self._path:
            self._hand_back(operation, values, references, multipliers)
        return (
            [values[name] for name in self._wanted],
            [references[name] for name in self._wanted],
            [multipliers.get(name, ops.zeros_like(values[name])) for name in self._wanted],
        )

    def _hand_back(
        self, operation: Operation, values: Mapping, references: Mapping, multipliers: dict
    ) -> None:
        inputs = [values[name] for name in operation.inputs]
        reference = [references[name] for name in operation.inputs]
        parts = self._rule(operation, inputs, reference, multipliers[operation.name])
        for name, part in zip(operation.inputs, parts, strict=True):
            multipliers[name] = multipliers[name] + part if name in multipliers else part


def gradient_rule(operation: Operation, inputs: list, reference: list, cotangent: Any) -> Any:
    """Return the gradients by the inputs."""
    return vector_jacobian_product(operation.compute, inputs, cotangent)


def rescale_rule(operation: Operation, inputs: list, reference: list, cotangent: Any) -> Any:
    """Return DeepLIFT's multipliers of the inputs.

    An activation's multiplier is Δoutput / Δinput. A maximum's change goes to the element
    that was the largest, or to the one that is. Everything else has the gradient half-way
    between reference and sample, which adds up exactly where an operation is linear or
    multiplies two inputs; for others (a softmax inside, a normalisation by the sample's own
    statistics) it does so to second order.
    """
    if operation.kind in ("rectify", "elementwise") and len(inputs) == 1:
        return [_quotient(operation, inputs[0], reference[0], cotangent)]
    if operation.kind in ("maximum", "maximum_merge", "minimum_merge"):
        return _largest(operation, inputs, reference, cotangent)
    middle = [(x + x0) / 2 for x, x0 in zip(inputs, reference, strict=True)]
    return vector_jacobian_product(operation.compute, middle, cotangent)


def _quotient(operation: Operation, x: Any, x0: Any, cotangent: Any) -> Any:
    (gradient,) = vector_jacobian_product(operation.compute, [x], cotangent)
    change = x - x0
    small = ops.abs(change) < _SMALL
    outputs = operation.compute(x) - operation.compute(x0)
    return ops.where(small, gradient, cotangent * outputs / ops.where(small, 1.0, change))


def _largest(operation: Operation, inputs: list, reference: list, cotangent: Any) -> list:
    y, y0 = operation.compute(*inputs), operation.compute(*reference)
    further = ops.minimum if operation.kind == "minimum_merge" else ops.maximum
    most = further(y, y0)
    gained = vector_jacobian_product(operation.compute, inputs, cotangent * (most - y0))
    lost = vector_jacobian_product(operation.compute, reference, cotangent * (y - most))
    parts = []
    for x, x0, up, down in zip(inputs, reference, gained, lost, strict=True):
        change = x - x0
        still = ops.equal(change, 0.0)
        parts.append(ops.where(still, 0.0, (up + down) / ops.where(still, 1.0, change)))
    return parts


def _between(im: InstrumentedModel, wanted: Sequence[str]) -> tuple[Operation, ...]:
    """Return, in reverse, the operations after `wanted` that the logits depend on."""
    after: set[str] = set()
    for operation in im.operations:
        if any(name in after or name in wanted for name in operation.inputs):
            after.add(operation.name)
    needed = {im.logit_operation}
    path = []
    for operation in reversed(im.operations):
        if operation.name in needed and operation.name in after:
            needed.update(operation.inputs)
            path.append(operation)
    return tuple(path)


def label_logit(logits: Any, y: Any) -> Any:
    """Return the cotangent of each sample's own label's logit."""
    return ops.one_hot(y, logits.shape[-1], dtype=logits.dtype)


def cross_entropy(logits: Any, y: Any) -> Any:
    """Return the gradient of each sample's cross-entropy by the logits."""
    return keras.activations.softmax(logits) - label_logit(logits, y)
