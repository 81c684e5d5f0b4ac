"""Numbers that many analyses compute: answers, distances, quality, margins, largest values.

`InstrumentedModel.classes` is the `OutputClasses` of a model. Nothing here imports Keras.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from nnslicer_tf._checks import ArrayLike, as_array, check_labels, check_number, counted
from nnslicer_tf.errors import InvalidArgumentError

FINAL_ACTIVATIONS = ("softmax", "log_softmax", "sparsemax", "sigmoid")
"""Functions that turn a model's scores (logits) into probabilities or their logarithms."""


def softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the softmax along an axis, float64, of the shape of `scores`."""
    return special.softmax(np.asarray(scores, np.float64), axis)


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-s), float64, of the shape of `scores`."""
    return special.expit(np.asarray(scores, np.float64))


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


def subset_figures(logits: np.ndarray, y: np.ndarray, targets: Iterable[int]) -> dict[str, float]:
    """Return a model's accuracies from its logits, by kind of samples.

    They are "all", "targets" (of target classes), "others" (NaN if there are none), and
    "among_targets" (those of target classes, if only target classes may be predicted).
    """
    targets, y = sorted(targets), check_labels(y, len(logits))
    in_targets = np.isin(y, targets)
    right = logits.argmax(axis=1) == y
    among = np.take(targets, logits[:, targets].argmax(axis=1)) == y
    return {
        "targets": float(right[in_targets].mean()),
        "others": float(right[~in_targets].mean()) if not in_targets.all() else float("nan"),
        "all": float(right.mean()),
        "among_targets": float(among[in_targets].mean()),
    }


def parted(values: np.ndarray, shapes: Mapping[Any, Sequence[int]]) -> dict[Any, np.ndarray]:
    """Return the arrays `(…, *shape)`, by name, that lie side by side in `values` `(…, size)`."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = zip(np.split(values, ends, axis=-1)[:-1], shapes.items(), strict=True)
    return {name: part.reshape((*values.shape[:-1], *shape)) for part, (name, shape) in parts}


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


CONFIDENCE = 0.95
"""Confidence of bounds."""


def lower_bound(successes: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """Return the one-sided lower bound of a probability (Clopper and Pearson, 1934)."""
    from scipy.stats import beta

    if successes == 0:
        return 0.0
    return float(beta.ppf(1 - confidence, successes, trials - successes + 1))


TASKS = ("binary", "multiclass", "multilabel", "regression")
"""What the values of an output are; see `OutputClasses`."""


@dataclass(frozen=True)
class OutputClasses:
    """The meaning of a model's output: classes or numbers, and what makes two answers agree.

    By its task, the output has one value for two classes ("binary"), one for each of several
    classes ("multiclass"), one for each of several independent labels ("multilabel"), or plain
    numbers ("regression"). A single value with logit z gives classes 1 and 0 the scores z/2 and
    −z/2, whose difference is z. For maps, "sample" below means each position.

    Attributes:
        final: The last function of the scores: one of `FINAL_ACTIVATIONS`, the name of another
            function with values from 0 to 1, such as "hard_sigmoid", "distribution" for
            probabilities computed in another way, such as a mean of softmaxes, or "" for none.
        shape: Shape of one sample's scores.
        axis: The axis of `shape` with one value per class.
        task: One of `TASKS`.
        remark: Why the task is assumed, and how to change it; "" if it is known.
    """

    final: str
    shape: tuple[int, ...]
    axis: int = -1
    task: str = "multiclass"
    remark: str = ""

    @property
    def are_logits(self) -> bool:
        """Whether the outputs are logits, or log-probabilities, whose softmax is the same."""
        return self.final in ("", "log_softmax")

    @property
    def is_binary(self) -> bool:
        """Whether one value separates two classes."""
        return self.task == "binary"

    @property
    def is_multi_label(self) -> bool:
        """Whether each class has its own probability, so that a sample can have several."""
        return self.task == "multilabel"

    @property
    def is_number(self) -> bool:
        """Whether the output is a number, or several, and no class."""
        return self.task == "regression"

    @property
    def is_map(self) -> bool:
        """Whether the output has classes at several positions, as a segmentation has."""
        return not self.is_number and len(self.shape) > 1

    @property
    def has_one_class(self) -> bool:
        """Whether an answer is one class, neither a map nor numbers."""
        return not self.is_number and not self.is_map

    @property
    def by_softmax(self) -> bool:
        """Whether a softmax of the logits gives the probabilities, so that classes are rivals."""
        return self.task == "multiclass" and self.final in ("", "softmax", "log_softmax")

    @property
    def count(self) -> int:
        """Number of classes, labels or numbers."""
        if self.is_binary:
            return 2
        return int(self.shape[self.axis]) if self.shape else 1

    @property
    def positions(self) -> tuple[int, ...]:
        """Shape of one sample's answer: of a map's positions, or of the numbers; () of a class."""
        axis = self.axis % max(1, len(self.shape))
        return self.shape if self.is_number else self.shape[:axis] + self.shape[axis + 1 :]

    def from_outputs(self, outputs: np.ndarray) -> np.ndarray:
        """Return each sample's most probable class, int64, the first of equals."""
        if self.are_logits:
            return self.from_logits(outputs)
        outputs = self.by_class(outputs)
        if self.is_binary:
            return (outputs[..., 0] > 0.5).astype(np.int64)
        return outputs.argmax(axis=-1)

    def from_logits(self, logits: np.ndarray) -> np.ndarray:
        """Return each sample's class of largest score, int64; logits precede `final`."""
        return self.scores(logits).argmax(axis=-1)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Return the probability of each class, `(samples, …, classes)` float64."""
        if self.is_number:
            raise InvalidArgumentError(f"The model predicts a number, not classes. {self.remark}")
        outputs = self.by_class(outputs).astype(np.float64)
        if self.final == "log_softmax":
            return np.exp(outputs)
        if not self.final:
            outputs = (softmax if self.task == "multiclass" else sigmoid)(outputs)
        if self.task != "multiclass":  # a model may be trained with outputs as probabilities
            outputs = np.clip(outputs, 0, 1)
        return np.concatenate([1 - outputs, outputs], axis=-1) if self.is_binary else outputs

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Return each class's score `(samples, …, classes)`: its logit; ∓z/2 for one value z."""
        logits = self.by_class(logits)
        return np.concatenate([-logits, logits], axis=-1) / 2 if self.is_binary else logits

    def of_scores(self, weights: np.ndarray) -> np.ndarray:
        """Return weights of the logits, `(samples, *shape)`, whose sum is that of weighted scores.

        `weights` are those of each class's score, `(samples, …, classes)`.
        """
        if self.is_binary:  # whose scores are −z/2 and z/2
            weights = (weights[..., 1:] - weights[..., :1]) / 2
        axis = self.axis % max(1, len(self.shape)) + 1
        return np.moveaxis(weights, -1, axis).reshape(len(weights), *self.shape)

    def contrast(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return weights of the logits, or numbers, in a score that parts answers.

        It is the score of the first class less that of the second, at each position; of numbers,
        the derivative of `distances` by the first, 0 where they agree. `(samples, *shape)` float64.
        """
        if not self.is_number:
            return self.of_scores(np.eye(self.count)[first] - np.eye(self.count)[second])
        size = max(1, np.prod(self.shape)) * self.distances(first, second)
        size = np.where(size > 0, size, 1).reshape(-1, *[1] * len(self.shape))
        return (first - second) / size

    def neuron(self, label: int) -> tuple[int, int]:
        """Return the logit of a class, and its sign: −1 for class 0 of one value, else 1."""
        if not 0 <= label < self.count:
            raise InvalidArgumentError(
                f"The model has {counted(self.count, 'class')}, from 0. Received: class {label}"
            )
        return (0, 2 * label - 1) if self.is_binary else (label, 1)

    def neurons(self, label: int) -> tuple[np.ndarray, int]:
        """Return the indices of a class's logits at all positions, row-major, and their sign.

        Numbers have no classes: whatever the label, they are all returned.
        """
        index, shape = np.arange(int(np.prod(self.shape))), self.shape or (1,)
        if self.is_number:
            return index, 1
        neuron, sign = self.neuron(label)
        return np.take(index.reshape(shape), neuron, axis=self.axis).ravel(), sign

    def truth(self, y: ArrayLike, samples: int) -> np.ndarray:
        """Return the right answers to some samples, in the form of `answers`.

        Classes may be one-hot, and numbers may lack axes of size 1. Raises InvalidArgumentError for
        another shape, unknown classes, or numbers that are not finite.
        """
        if not self.is_number:
            return check_labels(y, samples, self.count, self.positions)
        numbers = as_array(y)
        shapes = [tuple(n for n in shape if n != 1) for shape in (numbers.shape[1:], self.shape)]
        is_numeric = numbers.dtype.kind in "biuf" and np.isfinite(numbers).all()
        if len(numbers) != samples or shapes[0] != shapes[1] or not is_numeric:
            raise InvalidArgumentError(
                f"y must hold the right numbers for each of {samples} samples, finite and of shape "
                f"{(samples, *self.shape)}. Received: {numbers.dtype} of shape {numbers.shape}. "
                f"{self.remark}"
            )
        return numbers.astype(np.float64).reshape(samples, *self.shape)

    def answers(self, outputs: np.ndarray) -> np.ndarray:
        """Return the most probable classes `(samples, …)` int64, or numbers float64 as they are."""
        if self.is_number:
            return np.asarray(outputs, np.float64).reshape(len(outputs), *self.shape)
        return self.from_outputs(outputs)

    def tolerance(self, given: float | None) -> float:
        """Return how far two answers may be apart and agree: numbers need it, classes have none."""
        if given is None:
            if self.is_number:
                raise InvalidArgumentError(
                    "Numbers need a tolerance, the root mean square by which they may differ and "
                    f"agree, in their own unit: tolerance=0.1, or --tolerance 0.1. {self.remark}"
                )
            return 0.0
        if self.has_one_class:
            raise InvalidArgumentError(
                "A tolerance is for maps and numbers; single classes agree or differ. Received: "
                f"tolerance={given!r} for {self.count} classes. {self.remark}"
            )
        return check_number("tolerance", given, "[0, inf)")

    def distances(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return how far two models' answers are apart, `(samples,)` float64.

        Of classes it is the share of positions (for a vector, 0 or 1) where they differ, of numbers
        the root mean square of their differences, in their own unit.
        """
        places = tuple(range(1, np.ndim(first)))
        if self.is_number:
            return np.sqrt(np.square(np.asarray(first, np.float64) - second).mean(axis=places))
        return (first != second).mean(axis=places, dtype=np.float64)

    def quality(self, answers: np.ndarray, truth: np.ndarray) -> dict[str, float]:
        """Return figures of answers, compared with the right ones, by name.

        Classes have an "accuracy". Maps have the mean of the "IoU of class …", and these: the
        positions of all samples where both answers are the class, as a share of those where either
        is, for the classes that occur. Numbers have "R²", the explained share of the variance of
        all values, and "RMSE". What cannot be computed is NaN.
        """
        if self.is_number:
            squares = float(np.square(answers - truth).sum()), np.square(truth - truth.mean(axis=0))
            total = float(squares[1].sum())
            rmse = np.sqrt(squares[0] / truth.size) if truth.size else np.nan
            return {"R²": 1 - squares[0] / total if total else np.nan, "RMSE": float(rmse)}
        share = accuracy(answers, truth) if truth.size else np.nan
        if not self.is_map:
            return {"accuracy": share}
        shared = answers[answers == truth]
        both, *each = (
            np.bincount(np.ravel(v), minlength=self.count) for v in (shared, answers, truth)
        )
        either = each[0] + each[1] - both
        of_class = {f"IoU of class {c}": both[c] / either[c] for c in np.flatnonzero(either)}
        mean = np.mean(list(of_class.values())) if of_class else np.nan
        return {"mean IoU": float(mean), "accuracy": share, **of_class}

    def both_qualities(
        self, answers: Sequence[np.ndarray], truth: np.ndarray
    ) -> dict[str, tuple[float, float]]:
        """Return figure → its values for two models' answers; NaN where one has no such figure."""
        first, second = (self.quality(each, truth) for each in answers)
        return {
            name: (first.get(name, np.nan), second.get(name, np.nan))
            for name in {**first, **second}
        }

    def by_class(self, values: np.ndarray) -> np.ndarray:
        """Return values `(samples, …, units)`, with one unit for each class on the last axis."""
        values = np.asarray(values).reshape(len(values), *(self.shape or (1,)))
        return np.moveaxis(values, self.axis % max(1, len(self.shape)) + 1, -1)
