"""Failing and passing runs of a model, the input of fault localisation."""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nnslicer_tf._checks import ArrayLike
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.outputs import check_classifier

Labelled: TypeAlias = tuple[DataLike, ArrayLike]


@dataclass(frozen=True, eq=False)
class ClassifiedSamples:
    """Samples `x` `(samples, *input_shape)` float32, with right and predicted classes, int64."""

    x: np.ndarray
    right: np.ndarray
    predicted: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    def part(self, rows: np.ndarray) -> "ClassifiedSamples":
        """Return some of the samples, by index or mask."""
        return ClassifiedSamples(self.x[rows], self.right[rows], self.predicted[rows])

    def by_class(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each right class with the indices of its samples."""
        for label in np.unique(self.right):
            yield int(label), np.flatnonzero(self.right == label)


@dataclass(frozen=True, eq=False)
class Runs:
    """A model's failing (misclassified) and passing (correctly classified) samples."""

    failing: ClassifiedSamples
    passing: ClassifiedSamples

    @classmethod
    def of(cls, im: InstrumentedModel, failing: Labelled, passing: Labelled) -> "Runs":
        """Check and classify samples.

        Args:
            im: The model, a classifier.
            failing: Misclassified samples `(samples, *input_shape)` and their right classes.
            passing: The same for correctly classified samples.

        Raises:
            InvalidArgumentError: if either kind is empty, a failing sample is classified correctly,
                or a passing one is not.
            InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
        """
        runs = cls(_classified(im, failing, "failing"), _classified(im, passing, "passing"))
        for name, part in vars(runs).items():
            wrong = name == "failing"
            unfit = np.flatnonzero((part.predicted != part.right) != wrong)
            if len(unfit):
                raise InvalidArgumentError(
                    f"The model classifies {len(unfit)} of the {len(part)} {name} samples "
                    f"{'correctly' if wrong else 'wrongly'}, the first at index {unfit[0]}. Divide "
                    "samples with Runs.split(im, x, y)."
                )
        return runs

    @classmethod
    def split(cls, im: InstrumentedModel, x: DataLike, y: ArrayLike | None = None) -> "Runs":
        """Split samples into failing and passing ones.

        Args:
            im: The model, a classifier.
            x: Samples `(samples, *input_shape)`.
            y: Their right classes `(samples,)`; None if `x` has them.

        Raises:
            InvalidArgumentError: if all samples pass, or all fail.
            InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
        """
        whole = _classified(im, im.labelled(x, y), "given")
        wrong = whole.predicted != whole.right
        if wrong.all() or not wrong.any():
            raise InvalidArgumentError(
                f"The model classifies all {len(whole)} samples "
                f"{'wrongly' if wrong.all() else 'correctly'}: pass both failing and passing ones."
            )
        return cls(whole.part(wrong), whole.part(~wrong))

    def sampled(self, most: int, rng: int | np.random.Generator = 0) -> "Runs":
        """Return at most `most` runs of either kind, drawn without replacement."""
        generator = np.random.default_rng(rng)
        failing, passing = (
            part.part(np.sort(generator.permutation(len(part))[:most]))
            for part in (self.failing, self.passing)
        )
        return Runs(failing, passing)


def _classified(im: InstrumentedModel, data: Labelled, name: str) -> ClassifiedSamples:
    try:
        x, y = data
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"The {name} samples must be a pair: samples and their correct classes."
        ) from error
    if isinstance(x, Sized) and not len(x):
        raise InvalidArgumentError(f"There are no {name} samples.")
    check_classifier(im, exclusive=True)
    x, y = im.labelled(x, y)
    return ClassifiedSamples(x, y, im.classes.from_logits(im.logits(x)))
