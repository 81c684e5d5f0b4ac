"""A backward pass from the logits through the operations, with a pluggable rule.

`gradient_rule` gives back-propagation, `rescale_rule` DeepLIFT's multipliers (Shrikumar et al.,
ICML 2017, sections 3.2 and 3.5.1). Cost per batch: a forward and a backward pass, and for the
rescale rule a forward pass of the reference.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.instrument.inputs import Inputs, arrays_of
from nnslicer_tf.instrument.recurrence import RECURRENCE, Member
from nnslicer_tf.kinds import kind_of
from nnslicer_tf.kinds.rescale import midpoint

Rule = Callable[[Operation, list, list, Any], Sequence[Any]]


class Backward:
    """Computes values, reference values and multipliers of chosen operations, batch by batch.

    `seed` maps logits and labels to the cotangent of the logits; `rule` maps an operation, its
    inputs, its reference inputs and its output's multipliers to its inputs' multipliers.
    """

    def __init__(
        self, im: InstrumentedModel, wanted: Sequence[str], seed: Callable, rule: Rule
    ) -> None:
        self._im = im
        self._wanted = tuple(wanted)
        self._seed = seed
        self._rule = rule
        self._recurrent = [name for name in self._wanted if im[name].kind == RECURRENCE]
        members = [o.name for name in self._recurrent for o in _members(im, im[name])]
        path = im.graph.between((*self._wanted, *members), [im.logit_operation])
        self._path = tuple(reversed(path))
        self._shapes = {operation.name: operation.shape for operation in im.operations}
        self._run = compiled_function(self._walk)

    def __call__(
        self, x: np.ndarray | Inputs, y: np.ndarray, reference: np.ndarray | Inputs
    ) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return operation → (values, reference values, multipliers), `(batch, …)` float32."""
        inputs, references = (
            [ops.convert_to_tensor(array) for array in arrays_of(samples)]
            for samples in (x, reference)
        )
        parts = self._run(inputs, ops.convert_to_tensor(y.astype(np.int32)), references)
        arrays = [[ops.convert_to_numpy(t) for t in part] for part in parts]
        return dict(zip(self._wanted, zip(*arrays, strict=True), strict=True))

    def _walk(self, x: list, y: Any, reference: list) -> tuple[list, list, list]:
        logits = self._im.logit_operation
        values = self._im.compute(x, (logits, *self._wanted))
        references = {
            name: value + ops.zeros_like(values[name])
            for name, value in self._im.compute(reference, (logits, *self._wanted)).items()
        }

        def rule(operation: Operation, cotangent: Any) -> Sequence[Any]:
            inputs = [values[name] for name in operation.inputs]
            # The reference has the padding of the sample.
            is_mask = [self._im[name].kind == "mask" for name in operation.inputs]
            reference = [
                (values if mask else references)[name]
                for name, mask in zip(operation.inputs, is_mask, strict=True)
            ]
            return self._rule(operation, inputs, reference, cotangent)

        seed = {logits: self._seed(values[logits], y)}
        multipliers = propagate(self._path, seed, rule, self._shapes)
        for name in self._recurrent:
            multipliers[name] = self._through_time(self._im[name], values, multipliers)
        return (
            [values[name] for name in self._wanted],
            [references[name] for name in self._wanted],
            [multipliers.get(name, ops.zeros_like(values[name])) for name in self._wanted],
        )

    def _through_time(
        self, operation: Operation, values: Mapping[str, Any], received: Mapping[str, Any]
    ) -> Any:
        """Return a recurrent operation's gradients, given those `received` from its consumers.

        The graph does not record dependencies between steps, so the layer is run again.
        """
        member: Member = operation.params
        inputs = [values[name] for name in operation.inputs]
        inner = {o.params.operation.name: o.name for o in _members(self._im, operation)}

        def read(added: Any) -> Any:
            states = member.unrolled.run(*inputs, added={member.operation.name: added})
            parts = [states[k] * received[name] for k, name in inner.items() if name in received]
            return sum(ops.sum(part, axis=tuple(range(1, len(part.shape)))) for part in parts)

        zeros = ops.zeros_like(values[operation.name])
        return vector_jacobian_product(read, [zeros], ops.ones_like(zeros[:, 0, 0]))[0]


def _members(im: InstrumentedModel, operation: Operation) -> list[Operation]:
    """Return all operations of the recurrent layer that an operation belongs to."""
    members = [o for o in im.operations if isinstance(o.params, Member)]
    return [o for o in members if o.params.unrolled is operation.params.unrolled]


def gradient_rule(operation: Operation, inputs: list, reference: list, cotangent: Any) -> Any:
    """Return the gradients with respect to the inputs."""
    return vector_jacobian_product(operation.compute, inputs, cotangent)


def rescale_rule(operation: Operation, inputs: list, reference: list, cotangent: Any) -> Any:
    """Return DeepLIFT's multipliers of the inputs, by the rule of the operation's kind."""
    rule = kind_of(operation).rescale or midpoint
    return rule(operation, inputs, reference, cotangent)


def label_logit(logits: Any, y: Any) -> Any:
    """Return the cotangent that selects the score of each sample's label: its logit, or −z, z."""
    if logits.shape[-1] == 1:
        return ops.cast(2 * y[:, None] - 1, logits.dtype)
    return ops.one_hot(y, logits.shape[-1], dtype=logits.dtype)


def cross_entropy(logits: Any, y: Any, sigmoid: bool = False) -> Any:
    """Return the gradient of the cross-entropy; with `sigmoid`, only the label's should be 1."""
    if not sigmoid:
        return keras.activations.softmax(logits) - label_logit(logits, y)
    one = logits.shape[-1] == 1
    labels = ops.cast(y[:, None], logits.dtype) if one else label_logit(logits, y)
    return ops.sigmoid(logits) - labels
