"""Failing and passing runs of a model, the input of fault localisation.

A run fails if its answer is farther from the right one than a tolerance, by
`OutputClasses.distances`: a wrong class; of a map, the share of wrong positions; of numbers, the
root mean square difference.
"""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nnslicer_tf._checks import ArrayLike, check_number
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.outputs import check_exclusive

Labelled: TypeAlias = tuple[DataLike, ArrayLike]


@dataclass(frozen=True, eq=False)
class ClassifiedSamples:
    """Samples `x` `(samples, *input_shape)` float32, with right and predicted answers.

    These are classes `(samples, …)` int64, of maps at each position, or numbers float64.
    """

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
    """A model's failing and passing samples."""

    failing: ClassifiedSamples
    passing: ClassifiedSamples

    @classmethod
    def of(
        cls,
        im: InstrumentedModel,
        failing: Labelled,
        passing: Labelled,
        *,
        tolerance: float | None = None,
        output: str | None = None,
    ) -> "Runs":
        """Check samples that are divided, and ask the model for its answers.

        Args:
            im: The model: a classifier, a segmentation, or a model of numbers or images.
            failing: Samples `(samples, *input_shape)` and their right answers: classes `(samples,)`
                or, of maps, `(samples, …)`, or numbers.
            passing: The same for samples with good answers.
            tolerance: The largest distance of a passing sample's answer. None: 0 for classes; maps
                and numbers may be divided in any way, such as by IoU, by which the failing answers
                are farther away on average.
            output: Name of the output that is meant; needed if there are several.

        Raises:
            InvalidArgumentError: if either kind is empty, a failing sample is answered correctly,
                or a passing one is not.
            InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
        """
        im = im.of_output(output)
        kind, limit = im.classes, _limit(im, tolerance)
        runs = cls(_classified(im, failing, "failing"), _classified(im, passing, "passing"))
        distances = [kind.distances(p.predicted, p.right) for p in (runs.failing, runs.passing)]
        if limit is None and distances[0].mean() <= distances[1].mean():
            raise InvalidArgumentError(
                "The answers to the failing samples are no farther from the right ones "
                f"({distances[0].mean():.4g} on average) than those to the passing samples "
                f"({distances[1].mean():.4g}). Divide samples with Runs.split(im, x, y)."
            )
        for name, part in zip(vars(runs), distances, strict=True):
            wrong = name == "failing"
            unfit = np.flatnonzero((part > limit) != wrong) if limit is not None else ()
            if len(unfit):
                raise InvalidArgumentError(
                    f"The model answers {len(unfit)} of the {len(part)} {name} samples "
                    f"{'correctly' if wrong else 'wrongly'}, the first at index {unfit[0]}. Divide "
                    "samples with Runs.split(im, x, y)."
                )
        return runs

    @classmethod
    def split(
        cls,
        im: InstrumentedModel,
        x: DataLike,
        y: ArrayLike | None = None,
        *,
        tolerance: float | None = None,
        output: str | None = None,
    ) -> "Runs":
        """Split samples into failing and passing ones.

        Args:
            im: The model, as in `of`.
            x: Samples `(samples, *input_shape)`.
            y: Their right answers, as in `of`; None if `x` has them.
            tolerance: A sample fails if its answer is farther away. None: 0 for classes, the median
                of the samples' distances for maps and numbers.
            output: Name of the output that is meant; needed if there are several.

        Raises:
            InvalidArgumentError: if all samples pass, or all fail.
            InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
        """
        im = im.of_output(output)
        limit = _limit(im, tolerance)
        whole = _classified(im, im.labelled(x, y), "given")
        distances = im.classes.distances(whole.predicted, whole.right)
        wrong = distances > (np.median(distances) if limit is None else limit)
        if wrong.all() or not wrong.any():
            raise InvalidArgumentError(
                f"The model answers all {len(whole)} samples "
                f"{'wrongly' if wrong.all() else 'correctly'}: pass both failing and passing ones"
                f"{'' if limit == 0 else ', or another tolerance'}."
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


def _limit(im: InstrumentedModel, tolerance: float | None) -> float | None:
    """Return the tolerance, by default 0 for one class; reject independent labels."""
    check_exclusive(im)
    if tolerance is None:
        return None if im.classes.is_number or im.classes.is_map else 0.0
    return check_number("tolerance", tolerance, "[0, inf)")


def _classified(im: InstrumentedModel, data: Labelled, name: str) -> ClassifiedSamples:
    try:
        x, y = data
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"The {name} samples must be a pair: samples and their right answers."
        ) from error
    if isinstance(x, Sized) and not len(x):
        raise InvalidArgumentError(f"There are no {name} samples.")
    x, y = im.labelled(x, y)
    if im.classes.is_number:
        return ClassifiedSamples(x, y, im.classes.answers(im.predict(x)))
    return ClassifiedSamples(x, y, im.classes.from_logits(im.logits(x)))
