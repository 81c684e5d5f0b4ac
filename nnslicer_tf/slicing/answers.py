"""`Answers`: what the values of an operation answer, and how far two answers are apart.

An answer is a class; one of two (a label is on or off, one class leads another); or a number (an
output without classes, a pixel, a region of a map, inner neurons).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from nnslicer_tf._checks import is_int
from nnslicer_tf._numerics import OutputClasses, sigmoid, softmax
from nnslicer_tf.errors import CriterionError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.ablation import RIVALS
from nnslicer_tf.instrument.target import Target, resolve_target
from nnslicer_tf.slicing.criterion import PREDICTED

CLASS, BINARY, NUMBER = "class", "binary", "number"


class Answers:
    """Answers of an operation, their probabilities, and divergences from the whole model's.

    Attributes:
        operation: Name of the operation whose values are read, such as an output's logits.
        kind: "class", "binary" or "number".
        classes: What the output says about classes.
        target: Whose score a binary answer or number is; None for a class.
        full: The whole model's values, `(samples, values)` float64; set before use.
    """

    def __init__(self, im: InstrumentedModel, output: str | None, target: Target | None) -> None:
        self.target = target
        self.operation = im.logit_operation_of(output) if target is None else target.operation
        self.classes: OutputClasses = im.classes_of(output)
        self._shape = im[self.operation].shape
        self._weights = np.zeros(0) if target is None else target.weights(im[self.operation].size)
        self.kind = CLASS
        if target is not None:
            is_label = target.label is not None and self.classes.is_multi_label
            self.kind = BINARY if target.against or is_label else NUMBER
        is_output = self.operation == im.logit_operation_of(output)
        self._outputs = partial(im.outputs_from, output=output) if is_output else np.asarray
        of_sigmoid = self.classes.final in ("", "sigmoid")
        self._by_sigmoid = of_sigmoid and self.classes.task != "multiclass"
        self.full = np.zeros((0, 0))

    @property
    def is_number(self) -> bool:
        """Whether the answer is a number."""
        return self.kind == NUMBER

    @property
    def count(self) -> int:
        """Number of possible answers; 1 for a number."""
        return {CLASS: self.classes.count, BINARY: 2, NUMBER: 1}[self.kind]

    @property
    def names(self) -> list[int]:
        """The classes or labels that a binary answer is about: on, or leading, first."""
        if self.kind != BINARY or self.target is None:
            return []
        return [int(n) for n in (*self.target.neurons, *self.target.against)]

    def score(self, answer: Any) -> tuple[np.ndarray, float]:
        """Return the weight of each value in an answer's score, and the share of its rivals."""
        if self.kind != CLASS:
            sign = -1.0 if self.kind == BINARY and not answer else 1.0
            return (sign * self._weights).astype(np.float32), 0.0
        neuron, sign = self.classes.neuron(int(answer))
        weights = np.zeros(int(np.prod(self._shape)), np.float32)
        weights[neuron] = sign
        return weights, RIVALS if self.classes.by_softmax else 0.0

    def of(self, values: np.ndarray) -> np.ndarray:
        """Return the answers, `(samples,)`: classes, 1 or 0, or numbers."""
        if self.kind == CLASS:
            return self.classes.from_logits(values.reshape(len(values), *self._shape))
        if self.kind == BINARY:
            return (self._scores(values) > 0).astype(np.int64)
        outputs = np.asarray(self._outputs(values.reshape(len(values), *self._shape)), np.float64)
        return outputs.reshape(len(values), -1) @ np.abs(self._weights).astype(np.float64)

    def probabilities(self, values: np.ndarray) -> np.ndarray:
        """Return the probability of each answer, `(samples, answers)`; NaN for a number."""
        if self.kind == NUMBER:
            return np.full((len(values), 1), np.nan)
        if self.kind == BINARY:
            odds = sigmoid(self._scores(values))
            return np.stack([1 - odds, odds], axis=1)
        shaped = values.reshape(len(values), *self._shape)
        scores = self.classes.scores(shaped).reshape(len(values), -1).astype(np.float64)
        if self.classes.by_softmax or (self._by_sigmoid and self.classes.is_binary):
            return softmax(scores)
        if self._by_sigmoid:
            return sigmoid(scores)
        return self.classes.probabilities(self._outputs(shaped)).reshape(len(values), -1)

    def probability(self, values: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the probability of each sample's target, `(samples,)`; NaN for a number."""
        columns = np.zeros(len(values), int) if self.is_number else targets
        return self.probabilities(values)[np.arange(len(values)), columns]

    def divergence(self, values: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the KL divergence of outputs from the model's, `(samples,)`; for a number, |Δ|."""
        full = self.full[rows]
        if self.is_number:
            return np.abs(self.of(values) - self.of(full))
        p, q = self.probabilities(full), self.probabilities(values)
        if self.kind == CLASS and self.classes.is_multi_label:
            p, q = (np.concatenate([v, 1 - v], axis=1) for v in (p, q))
        tiny = 1e-30
        return (p * (np.log(p + tiny) - np.log(q + tiny))).sum(axis=1)

    def _scores(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(len(values), -1).astype(np.float64) @ self._weights


def asked_answers(im: InstrumentedModel, outputs: Any) -> tuple[Answers, Any]:
    """Return what answers a decisive slice keeps, and for classes the ones that are expected.

    `outputs` is "predicted", a class or one for each sample; {output: one of these}; or any target
    of attributions: a label among independent ones, a pixel or region of a map, inner neurons, the
    difference of two classes. Raises CriterionError or InvalidArgumentError if it fits no output.
    """
    name: str | None = None
    wanted = outputs
    if isinstance(outputs, Target):
        names = [o for o in im.outputs if im.output_operation_of(o) == outputs.answer]
        is_class = outputs.label is not None and not outputs.against
        if not is_class or im.classes_of(names[0]).is_multi_label:
            return Answers(im, names[0] if names else None, outputs), None
        return Answers(im, names[0], None), outputs.label
    if isinstance(outputs, Mapping):
        if len(outputs) != 1:
            raise CriterionError(f"A decisive slice keeps one output. Received: {list(outputs)}")
        ((name, wanted),) = outputs.items()
        if name not in im.outputs and name not in im.output_operations:
            return Answers(im, None, resolve_target(im, outputs)), None
    elif len(im.output_operations) > 1:
        raise CriterionError(
            f"A decisive slice keeps one output; '{im.model.name}' has {', '.join(im.outputs)}. "
            f"Name one: {{'{next(iter(im.outputs))}': 'predicted'}}."
        )
    classes, shape = im.classes_of(name), im[im.logit_operation_of(name)].shape
    is_predicted = isinstance(wanted, str) and wanted == PREDICTED
    if len(shape) <= 1 and not classes.is_number:
        if classes.is_multi_label and np.size(wanted) == 1 and not is_predicted:
            wanted = np.ravel(wanted)[0]
            if not is_int(wanted):
                raise CriterionError(f"Outputs are 'predicted' or a label. Received: {wanted!r}")
            label = int(wanted)
            target = resolve_target(im, {name or next(iter(im.outputs)): label})
            labelled = Target(target.operation, target.neurons, target.answer, label)
            return Answers(im, name, labelled), None
        return Answers(im, name, None), wanted
    if is_predicted and np.prod(shape) == 1:
        wanted = "all"
    if is_predicted and np.prod(shape) > 1:
        own = name or next(iter(im.outputs))
        what = f"{shape[0]} numbers" if len(shape) == 1 else f"a map of shape {shape}"
        index = "0" if len(shape) == 1 else f"np.s_[{', '.join('0' * len(shape))}]"
        raise CriterionError(
            f"A decisive slice keeps a class or one number; output '{own}' has {what}. Name what "
            f"to keep, such as outputs={{'{own}': {index}}}. {classes.remark}"
        )
    target = resolve_target(im, {name or next(iter(im.outputs)): wanted})
    return Answers(im, name, target), None
