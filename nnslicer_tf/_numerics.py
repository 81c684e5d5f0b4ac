"""Numbers that many analyses compute: classes, probabilities, margins, the largest values.

`InstrumentedModel.classes` is the `OutputClasses` of a model. Nothing here imports Keras.
"""

from dataclasses import dataclass

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError

FINAL_ACTIVATIONS = ("softmax", "log_softmax", "sparsemax", "sigmoid")
"""Functions that turn a model's scores (logits) into probabilities or their logarithms."""


def softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the softmax along an axis, float64, of the shape of `scores`."""
    scores = np.asarray(scores, np.float64)
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-s), float64, of the shape of `scores`."""
    # The logistic function as a tanh does not overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * np.asarray(scores, np.float64))


def runner_up_margin(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return max over c ≠ label of scores[c] − scores[label]; negative if the label wins."""
    others = np.array(scores, np.float64)
    rows = np.arange(len(others))
    chosen = others[rows, labels]
    others[rows, labels] = -np.inf
    return others.max(axis=1) - chosen


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of predicted classes that equal their labels."""
    return float(np.mean(np.asarray(predicted) == np.asarray(labels)))


def smallest(values: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the `count` smallest values, first in C order among ties, in linear time."""
    flat = values.ravel()
    if count <= 0:
        return np.zeros(values.shape, bool)
    bound = np.partition(flat, count - 1)[count - 1]
    chosen = flat < bound
    chosen[np.flatnonzero(flat == bound)[: count - chosen.sum()]] = True
    return chosen.reshape(values.shape)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return a boolean array, True for the `count` largest; ties as in `smallest`."""
    return smallest(-values, count)


@dataclass(frozen=True)
class OutputClasses:
    """The meaning of a model's output in terms of classes.

    One sigmoid separates two classes: with the logit z, class 1 has the probability σ(z) and
    the score z, class 0 the probability 1 − σ(z) and the score −z. Several sigmoids are
    independent labels (`is_multi_label`). One value without a sigmoid is a number, not a class.
    For maps, "sample" below means each position.

    Attributes:
        final: The last function of the scores: one of `FINAL_ACTIVATIONS`, "distribution" for
            probabilities computed in another way, such as a mean of softmaxes or some of a
            softmax's values, or "" for none.
        shape: Shape of one sample's scores.
        axis: The axis of `shape` with one value per class.
    """

    final: str
    shape: tuple[int, ...]
    axis: int = -1

    @property
    def are_logits(self) -> bool:
        """Whether the outputs are logits, or log-probabilities, whose softmax is the same."""
        return self.final in ("", "log_softmax")

    @property
    def is_binary(self) -> bool:
        """Whether one sigmoid separates two classes."""
        return self.final == "sigmoid" and self._units == 1

    @property
    def is_multi_label(self) -> bool:
        """Whether each class has its own sigmoid, so that a sample can have several."""
        return self.final == "sigmoid" and not self.is_binary

    @property
    def is_number(self) -> bool:
        """Whether the output is one number that is not a probability, as in regression."""
        return self._units == 1 and not self.is_binary

    @property
    def count(self) -> int:
        """Number of classes; 1 for a number."""
        return 2 if self.is_binary else self._units

    def from_outputs(self, outputs: np.ndarray) -> np.ndarray:
        """Return each sample's most probable class, int64, the first of equals."""
        outputs = self._by_class(outputs)
        if self.is_binary:
            return (outputs[..., 0] > 0.5).astype(np.int64)
        return outputs.argmax(axis=-1)

    def from_logits(self, logits: np.ndarray) -> np.ndarray:
        """Return each sample's class of largest score, int64; logits precede `final`."""
        return self.scores(logits).argmax(axis=-1)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Return the probability of each class, `(samples, …, classes)` float64."""
        outputs = self._by_class(outputs).astype(np.float64)
        if self.is_binary:
            return np.concatenate([1 - outputs, outputs], axis=-1)
        if self.is_number:
            raise InvalidArgumentError(
                "The model has one output without a sigmoid, so it predicts a number, not classes. "
                "If it tells two classes apart, end it with a sigmoid."
            )
        if self.final == "log_softmax":
            return np.exp(outputs)
        return outputs if self.final else softmax(outputs)

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Return each class's score `(samples, …, classes)`: its logit; −z, z for a sigmoid."""
        logits = self._by_class(logits)
        return np.concatenate([-logits, logits], axis=-1) if self.is_binary else logits

    def neuron(self, label: int) -> tuple[int, int]:
        """Return the logit of a class, and its sign: 1, or −1 for class 0 of a sigmoid."""
        if not 0 <= label < self.count:
            raise InvalidArgumentError(
                f"The model has {self.count} classes, from 0. Received: class {label}"
            )
        return (0, 2 * label - 1) if self.is_binary else (label, 1)

    @property
    def _units(self) -> int:
        return int(self.shape[self.axis]) if self.shape else 1

    def _by_class(self, values: np.ndarray) -> np.ndarray:
        """Return values `(samples, …, units)`, with one unit for each class on the last axis."""
        values = np.asarray(values).reshape(len(values), *(self.shape or (1,)))
        return (
            values if self.axis == -1 else np.moveaxis(values, self.axis % len(self.shape) + 1, -1)
        )


def output_classes(
    final: str, shape: tuple[int, ...], example: np.ndarray, axis: int = -1
) -> OutputClasses:
    """Return the meaning of an output; by `example` outputs, other probabilities are recognised."""
    classes = OutputClasses(final, tuple(shape), axis)
    if not final and classes.count > 1:
        rows = classes._by_class(example).astype(np.float64)
        if (rows >= 0).all() and np.allclose(rows.sum(axis=-1), 1, atol=1e-3):
            return OutputClasses("distribution", tuple(shape), axis)
    return classes
