"""Failing and passing runs of a model, the input of fault localisation."""

from collections.abc import Sized
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nnslicer_tf._checks import ArrayLike, as_generator, check_count, check_number
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import DataLike, InstrumentedModel
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


@dataclass(frozen=True, eq=False)
class Runs:
    """A model's failing and passing samples.

    A run fails if its answer is farther from the right one than a tolerance, by
    `OutputClasses.distances`: wrong class, share of wrong positions, root mean square difference.

    In what follows, `x` are samples `(samples, *input_shape)`; `y` their right answers, classes
    `(samples,)`, of maps `(samples, …)`, or numbers; and `output` the name of the output that is
    meant, needed if there are several.
    """

    failing: ClassifiedSamples
    passing: ClassifiedSamples

    @classmethod
    def of(
        cls, im: InstrumentedModel, failing: Labelled, passing: Labelled, output: str | None = None
    ) -> "Runs":
        """Ask a model for its answers to samples that are divided, each part a pair (x, y).

        Wrong classes fail. Maps and numbers may be divided in any way, such as by IoU, by which the
        failing answers are farther from the right ones on average.

        Raises InvalidArgumentError if a part is empty, or has a sample of the other;
        InputShapeError, InputRangeError or NonFiniteActivationError for bad data.
        """
        im = im.of_output(output).named_by(failing, passing)
        parts = {n: _classified(im, d, n) for n, d in (("failing", failing), ("passing", passing))}
        bad, good = (im.classes.distances(p.predicted, p.right) for p in parts.values())
        if not im.classes.has_one_class:
            if bad.mean() > good.mean():
                return cls(**parts)
            raise InvalidArgumentError(
                "The failing samples' answers are no farther from the right ones than the passing "
                f"samples': {bad.mean():.4g} and {good.mean():.4g}. Use Runs.split(im, x, y)."
            )
        for name, unfit in (("failing", bad == 0), ("passing", good > 0)):
            if unfit.any():
                raise InvalidArgumentError(
                    f"The model answers {unfit.sum()} of the {len(unfit)} {name} samples "
                    f"{'correctly' if name == 'failing' else 'wrongly'}, the first at index "
                    f"{unfit.argmax()}. Divide samples with Runs.split(im, x, y)."
                )
        return cls(**parts)

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
        """Split samples, `y` None if `x` has labels, into failing and passing ones.

        Answers fail whose distance is above the tolerance: by default 0 for classes, and the median
        of the distances for maps and numbers.

        Raises InvalidArgumentError if all samples pass, or all fail; InputShapeError,
        InputRangeError or NonFiniteActivationError for bad data.
        """
        im = im.of_output(output)
        whole = _classified(im, im.labelled(x, y), "given")
        distances = im.classes.distances(whole.predicted, whole.right)
        limit = 0.0 if im.classes.has_one_class else np.median(distances)
        if tolerance is not None:
            limit = check_number("tolerance", tolerance, "[0, inf)")
        wrong = distances > limit
        if wrong.all() or not wrong.any():
            how = f"with errors up to {limit:g}" if limit else "correctly"
            raise InvalidArgumentError(
                f"The model answers all {len(whole)} samples {'wrongly' if wrong.all() else how}: "
                "pass both failing and passing ones, or another tolerance."
            )
        return cls(whole.part(wrong), whole.part(~wrong))

    def sampled(self, most: int, rng: int | np.random.Generator = 0) -> "Runs":
        """Return at most `most` runs of either kind, drawn without replacement."""
        check_count("most", most)
        generator = as_generator(rng)
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
            f"The {name} samples must be a pair: samples and their right answers."
        ) from error
    if isinstance(x, Sized) and not len(x):
        raise InvalidArgumentError(f"There are no {name} samples.")
    check_exclusive(im)
    x, y = im.labelled(x, y)
    if im.classes.is_number:
        return ClassifiedSamples(x, y, im.classes.answers(im.predict(x)))
    return ClassifiedSamples(x, y, im.classes.from_logits(im.logits(x)))
