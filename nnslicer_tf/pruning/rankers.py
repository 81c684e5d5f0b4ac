"""Rankers: how much each synapse matters (NNSlicer, section 6.2.2).

A ranker assigns a score to every synapse; pruning removes the synapses with the smallest
scores in magnitude, protection hides those with the largest. `scores(im, "weight")` calls
a ranker by name.

To add a ranker, subclass `Ranker`, implement `scores`, and add a line to `RANKERS`. If it
ranks for target classes by their samples, subclass `ClassRanker` and implement `class_scores`.

Cost: rankers that use samples process every sample once, however many sets of target classes
there are: scores are kept by class, and those of a set are their sum. The others cost almost
nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._checks import as_generator, check_labels, check_name
from nnslicer_tf.baselines import effective_paths
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning.class_scores import ClassScores, Scores, check_classes
from nnslicer_tf.slicing import ClassProfiles, Profile, Slicer
from nnslicer_tf.slicing.slicer import check_options


class Ranker(ABC):
    """Scores the synapses of a model."""

    @abstractmethod
    def scores(
        self,
        im: InstrumentedModel,
        x: np.ndarray | None = None,
        y: np.ndarray | None = None,
        classes: Iterable[int] | None = None,
    ) -> Scores:
        """Return kernel name → scores of the kernel's shape.

        Args:
            im: The model.
            x: Samples `(samples, *input_shape)`, for rankers that need some.
            y: Their classes, `(samples,)` integers, or one-hot.
            classes: The target classes; all of `y` by default.

        Raises:
            InvalidArgumentError: for samples, labels or classes that do not fit.
        """


class _ModelRanker(Ranker):
    """A ranker that uses neither samples nor target classes."""

    def scores(
        self,
        im: InstrumentedModel,
        x: np.ndarray | None = None,
        y: np.ndarray | None = None,
        classes: Iterable[int] | None = None,
    ) -> Scores:
        """Return the scores, which do not depend on samples or classes."""
        return self._model_scores(im)

    @abstractmethod
    def _model_scores(self, im: InstrumentedModel) -> Scores:
        """Return the scores of a model's synapses."""


@dataclass(frozen=True)
class WeightRanker(_ModelRanker):
    """Magnitude of the weight, |w| (Han et al., ICLR 2016)."""

    def _model_scores(self, im: InstrumentedModel) -> Scores:
        return {name: np.abs(kernel.kernel()) for name, kernel in im.kernels.items()}


@dataclass(frozen=True)
class ChannelRanker(_ModelRanker):
    """Mean magnitude of a neuron's incoming weights, the same for all of its synapses."""

    def _model_scores(self, im: InstrumentedModel) -> Scores:
        result = {}
        for name, kernel in im.kernels.items():
            weights = np.abs(kernel.matrix())
            means = weights.mean(axis=(0, 1), keepdims=True)
            result[name] = kernel.to_kernel(np.broadcast_to(means, weights.shape))
        return result


@dataclass(frozen=True)
class RandomRanker(_ModelRanker):
    """Random scores, between 0 and 1.

    Attributes:
        rng: Draws the scores; an int gives the same scores each time.
    """

    rng: int | np.random.Generator = 0

    def _model_scores(self, im: InstrumentedModel) -> Scores:
        generator = as_generator(self.rng)
        return {name: generator.random(kernel.shape) for name, kernel in im.kernels.items()}


@dataclass(frozen=True)
class ClassRanker(Ranker):
    """A ranker that uses samples of the target classes.

    Attributes:
        correct_only: Use only the samples that the model classifies correctly.
    """

    correct_only: bool = field(default=True, kw_only=True)

    @abstractmethod
    def class_scores(self, im: InstrumentedModel, x: np.ndarray, target: int) -> Scores:
        """Return the scores for one class, given its samples."""

    def by_class(
        self,
        im: InstrumentedModel,
        x: np.ndarray,
        y: np.ndarray,
        classes: Iterable[int] | None = None,
    ) -> ClassScores:
        """Return the scores of each class, which `ClassScores.total` can sum for any set.

        Arguments and errors are those of `scores`.
        """
        wanted = check_classes(im, y, classes)
        x = im.check(x)
        y = check_labels(y, len(x))
        right = np.ones(len(x), bool)
        if self.correct_only:
            right = im.classes.from_logits(im.logits(x)) == y
        found = {}
        for target in wanted:
            chosen = x[right & (y == target)]
            if not len(chosen):
                raise InvalidArgumentError(
                    f"There are no samples of class {target} that the model classifies "
                    "correctly. Give more, or rank with correct_only=False."
                )
            found[target] = self.class_scores(im, chosen, target)
        return ClassScores(found)

    def scores(
        self,
        im: InstrumentedModel,
        x: np.ndarray | None = None,
        y: np.ndarray | None = None,
        classes: Iterable[int] | None = None,
    ) -> Scores:
        """Return the sum of the target classes' scores; see `Ranker.scores`."""
        if x is None or y is None:
            raise InvalidArgumentError(
                f"{type(self).__name__} ranks by samples: give x and y, the labelled samples."
            )
        return self.by_class(im, x, y, classes).total()


@dataclass(frozen=True)
class NNSlicerRanker(ClassRanker):
    """Contributions of the synapses to the target classes, by slicing (section 6.2.1).

    The slice of each class is computed from its samples, for its own output.

    Attributes:
        profile: The model's profile, or a profile for each class; by default, that of the given
            samples. The paper uses the whole training set, its program each class separately.
        theta: Threshold θ of the slices; 0 is far cheaper.
        granularity: "activation" or "channel", as in `Slicer`.
        collect: How the contributions for single samples are combined: "netted", summed with
            their signs, as in the paper's Equation 4; "magnitudes", summed without signs, so that
            opposite contributions do not cancel, as in the paper's program; or "samples", the
            number of samples whose slices include the synapse.
        relative_to: "output" or "sum", as in `Slicer`.
        rectify: "sign" or "pass", as in `Slicer`.
        workers: Number of workers, as in `Slicer`; by default, one thread.
        progress: Show progress bars.

    Raises:
        InvalidArgumentError: if an option is out of range.
    """

    profile: Profile | ClassProfiles | None = None
    theta: float = 0.3
    granularity: str = "activation"
    progress: bool = True
    collect: str = field(default="netted", kw_only=True)
    relative_to: str = field(default="output", kw_only=True)
    rectify: str = field(default="sign", kw_only=True)
    workers: int | None = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_name("way to collect", self.collect, COLLECT)
        check_options(self.theta, self.granularity, self.workers, self.relative_to, self.rectify)

    def by_class(
        self,
        im: InstrumentedModel,
        x: np.ndarray,
        y: np.ndarray,
        classes: Iterable[int] | None = None,
    ) -> ClassScores:
        """Return the contributions for each class; see `ClassRanker.by_class`."""
        check_classes(im, y, classes)
        slicers = self._slicers(im, x)
        slicing = _Slicing(slicers, self.collect, correct_only=self.correct_only)
        return slicing.by_class(im, x, y, classes)

    def _slicers(self, im: InstrumentedModel, x: np.ndarray) -> Callable[[int], Slicer]:
        """Return a function from a class to its slicer; one profile gives one slicer for all."""
        profile = self.profile or Profile.from_data(im, x, progress=self.progress)
        if isinstance(profile, ClassProfiles):
            by_class = profile
            return lambda target: self._slicer(im, by_class[target])
        slicer = self._slicer(im, profile)
        return lambda target: slicer

    def _slicer(self, im: InstrumentedModel, profile: Profile) -> Slicer:
        return Slicer(
            im,
            profile,
            self.theta,
            self.granularity,
            workers=self.workers,
            progress=self.progress,
            relative_to=self.relative_to,
            rectify=self.rectify,
        )

    def class_scores(self, im: InstrumentedModel, x: np.ndarray, target: int) -> Scores:
        """Return the contributions for one class."""
        return self.by_class(im, x, np.full(len(x), target)).total()


@dataclass(frozen=True)
class _Slicing(ClassRanker):
    """Contributions computed with the slicer of each class."""

    slicer_of: Callable[[int], Slicer]
    collect: str

    def class_scores(self, im: InstrumentedModel, x: np.ndarray, target: int) -> Scores:
        slicer = self.slicer_of(target)
        neuron, sign = im.classes.neuron(target)
        outputs = {im.logit_operation: [neuron]}
        if self.collect == "netted":
            synapses = slicer.slice(x, outputs=outputs).synapses
            return {name: sign * values for name, values in synapses.items()}
        totals = {name: np.zeros(kernel.shape, np.int64) for name, kernel in im.kernels.items()}
        what = f"Slices of class {target}"
        with tqdm(total=len(x), desc=what, disable=not slicer.progress, leave=False) as bar:
            for part in slicer.iterate(x, outputs=outputs, reduce=_REDUCTIONS[self.collect]):
                for name, added in part.reduced.items():
                    totals[name] += added.astype(np.int64)
                bar.update(len(part.predicted))
        return totals


def _magnitudes(synapses: Mapping[str, Any]) -> dict[str, Any]:
    """Sum the magnitudes of contributions over a batch, on the backend."""
    return {name: keras.ops.sum(keras.ops.abs(values), 0) for name, values in synapses.items()}


def _occurrences(synapses: Mapping[str, Any]) -> dict[str, Any]:
    """Count the samples of a batch that have contributions, on the backend."""
    return {
        name: keras.ops.sum(keras.ops.cast(values != 0, "float32"), 0)
        for name, values in synapses.items()
    }


_REDUCTIONS = {"magnitudes": _magnitudes, "samples": _occurrences}
COLLECT = ("netted", *_REDUCTIONS)
"""Ways to combine the contributions for single samples; see `NNSlicerRanker`."""


@dataclass(frozen=True)
class EffectivePathRanker(ClassRanker):
    """Number of effective paths that contain a synapse (Qiu et al., CVPR 2019).

    Attributes:
        theta: Share of a neuron's value that its contributors must reach.
        progress: Show progress bars.
    """

    theta: float = 0.5
    progress: bool = True

    def class_scores(self, im: InstrumentedModel, x: np.ndarray, target: int) -> Scores:
        """Return the number of samples whose path contains each synapse."""
        paths = effective_paths(im, x, self.theta, progress=self.progress)
        return _split(im, paths.sum(axis=0, dtype=np.int64))


RANKERS: dict[str, type[Ranker]] = {
    "nnslicer": NNSlicerRanker,
    "effective_path": EffectivePathRanker,
    "weight": WeightRanker,
    "channel": ChannelRanker,
    "random": RandomRanker,
}
"""The rankers by name."""


def scores(
    im: ModelLike,
    method: str | Ranker,
    x: np.ndarray | None = None,
    y: np.ndarray | None = None,
    classes: Iterable[int] | None = None,
) -> Scores:
    """Return how much each synapse matters: kernel name → array of the kernel's shape.

    Args:
        im: The model; a Keras model is instrumented.
        method: A name in `RANKERS`, or a ranker with its own options.
        x: Samples `(samples, *input_shape)`; "nnslicer" and "effective_path" need them.
        y: Their classes, `(samples,)` integers, or one-hot.
        classes: The target classes; by default all of `y` ("NNSlicer all").

    Raises:
        InvalidArgumentError: for an unknown method, or samples, labels or classes that do
            not fit.
    """
    im = instrumented(im)
    if isinstance(method, Ranker):
        return method.scores(im, x, y, classes)
    check_name("ranker", method, RANKERS)
    return RANKERS[method]().scores(im, x, y, classes)


def _split(im: InstrumentedModel, row: np.ndarray) -> Scores:
    """Split a row with one number for each synapse into arrays by kernel."""
    kernels = im.kernels
    ends = np.cumsum([kernel.size for kernel in kernels.values()])
    parts = np.split(row, ends[:-1])
    return {n: part.reshape(k.shape) for (n, k), part in zip(kernels.items(), parts, strict=True)}
