"""Failing and passing runs of a model, the input of fault localisation."""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf._checks import check_labels
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import DataLike

Labelled: TypeAlias = tuple[DataLike, ArrayLike]


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples with their right classes, and the classes that the model predicts.

    Attributes:
        x: `(samples, *input_shape)` float32.
        right: `(samples,)` int64.
        predicted: `(samples,)` int64.
    """

    x: np.ndarray
    right: np.ndarray
    predicted: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    def by_class(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each right class with the indices of its samples."""
        for label in np.unique(self.right):
            yield int(label), np.flatnonzero(self.right == label)


@dataclass(frozen=True, eq=False)
class Runs:
    """Samples that a model gets wrong, and samples that it gets right.

    Attributes:
        failing: Those that it gets wrong.
        passing: Those that it gets right.
    """

    failing: Samples
    passing: Samples

    @classmethod
    def of(cls, im: InstrumentedModel, failing: Labelled, passing: Labelled) -> "Runs":
        """Check and classify samples.

        Args:
            im: The model, a classifier.
            failing: Samples `(samples, *input_shape)` and their right classes `(samples,)`.
            passing: The same for samples that the model gets right.

        Raises:
            InvalidArgumentError: if there are none of either kind, or the model gets a failing
                one right or a passing one wrong.
            InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
        """
        runs = cls(_classified(im, failing, "failing"), _classified(im, passing, "passing"))
        for name, part, wrong in (
            ("failing", runs.failing, True),
            ("passing", runs.passing, False),
        ):
            unfit = np.flatnonzero((part.predicted != part.right) != wrong)
            if len(unfit):
                raise InvalidArgumentError(
                    f"{len(unfit)} of {len(part)} {name} samples are none: the model gets them "
                    f"{'right' if wrong else 'wrong'}, the first at index {unfit[0]}. "
                    "Runs.split(im, x, y) divides samples."
                )
        return runs

    @classmethod
    def split(cls, im: InstrumentedModel, x: DataLike, y: ArrayLike | None = None) -> "Runs":
        """Split samples into those that the model gets wrong and those it gets right.

        Args:
            im: The model, a classifier.
            x: Samples `(samples, *input_shape)`.
            y: Their right classes `(samples,)`; None if `x` has them.

        Raises:
            InvalidArgumentError: if the model gets all of them right, or all wrong.
            InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
        """
        whole = _classified(im, im.labelled(x, y), "given")
        wrong = whole.predicted != whole.right
        if wrong.all() or not wrong.any():
            raise InvalidArgumentError(
                f"The model gets all {len(whole)} samples {'wrong' if wrong.all() else 'right'}. "
                "Faults are found by comparing failing with passing samples: give more."
            )
        return cls(
            *(Samples(whole.x[w], whole.right[w], whole.predicted[w]) for w in (wrong, ~wrong))
        )

    def sampled(self, most: int, rng: int | np.random.Generator = 0) -> "Runs":
        """Return at most `most` runs of either kind, drawn without replacement."""
        generator = np.random.default_rng(rng)
        return Runs(
            _sampled(self.failing, most, generator), _sampled(self.passing, most, generator)
        )


def _sampled(samples: Samples, most: int, generator: np.random.Generator) -> Samples:
    chosen = np.sort(generator.permutation(len(samples))[:most])
    return Samples(samples.x[chosen], samples.right[chosen], samples.predicted[chosen])


def _classified(im: InstrumentedModel, data: Labelled, name: str) -> Samples:
    try:
        x, y = data
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"The {name} samples must be a pair: samples, and their right classes."
        ) from error
    if isinstance(x, Sized) and not len(x):
        raise InvalidArgumentError(f"There are no {name} samples.")
    shape = im[im.logit_operation].shape
    if len(shape) != 1 or shape[0] < 2:
        raise InvalidArgumentError(
            f"Faults are localised in classifiers with logits (samples, classes). "
            f"'{im.model.name}' gives outputs of shape {shape}."
        )
    x, y = im.labelled(x, y)
    return Samples(x, check_labels(y, len(x), shape[0]), im.logits(x).argmax(axis=1))
