"""Rankers: how much each synapse matters (NNSlicer, section 6.2.2).

Pruning removes the synapses with the smallest scores in magnitude, protection hides those with the
largest. Cost: rankers that use samples process each sample once for all sets of target classes; the
others cost almost nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf._checks import as_array, as_generator, check_name
from nnslicer_tf._environment import progress_bar
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, ModelLike, instrumented
from nnslicer_tf.instrument.data import one_order
from nnslicer_tf.instrument.outputs import check_classes
from nnslicer_tf.slicing import Profile, Slicer
from nnslicer_tf.slicing.criterion import PREDICTED
from nnslicer_tf.slicing.slicer import check_options

Scores = dict[str, np.ndarray]  # kernel name → scores of its shape
Rows = np.ndarray | None  # samples, or their classes
Classes = Iterable[int] | None  # target classes; None for all

COLLECT = ("netted", "magnitudes", "samples")
"""Ways to combine the contributions for single samples; see `NNSlicerRanker`."""


class Ranker(ABC):
    """Scores the synapses of a model.

    To add a ranker, implement `scores`, or `class_scores` of `ClassRanker`, for `pruning.scores`.
    """

    @abstractmethod
    def scores(
        self, im: InstrumentedModel, x: Rows = None, y: Rows = None, classes: Classes = None
    ) -> Scores:
        """Return kernel name → scores of the kernel's shape.

        Args:
            im: The model.
            x: Samples `(samples, *input_shape)`, for rankers that need some.
            y: Their classes `(samples,)`, or one-hot; of a map, at each position; or numbers.
            classes: The target classes; all of `y` by default. Numbers have none.

        Raises InvalidArgumentError for samples, labels or classes that do not fit.
        """


@dataclass(frozen=True)
class ClassRanker(Ranker):
    """A ranker that uses samples of the target classes.

    Attributes:
        correct_only: Use only the samples that the model classifies correctly.
    """

    correct_only: bool = field(default=True, kw_only=True)

    @abstractmethod
    def class_scores(self, im: InstrumentedModel, x: np.ndarray, target: int) -> Scores:
        """Return the scores for one class, given its samples; of numbers, `target` is 0."""

    def by_class(
        self, im: InstrumentedModel, x: np.ndarray, y: np.ndarray, classes: Classes = None
    ) -> dict[int, Scores]:
        """Return the scores of each class, as `scores` does, to be summed for any set of them."""
        targets = check_classes(im, y, classes)
        x = im.check(x)
        if im.classes.is_number:
            return {target: self.class_scores(im, x, target) for target in targets}
        y = im.classes.truth(y, len(x))
        right: Any = im.classes.from_logits(im.logits(x)) == y if self.correct_only else True
        scores = {}
        for target in targets:  # a map belongs to all classes that it shows
            rows = (right & (y == target)).reshape(len(x), -1).any(axis=1)
            if not rows.any():
                raise InvalidArgumentError(
                    f"There are no samples of class {target} that the model classifies "
                    "correctly. Give more, or rank with correct_only=False."
                )
            scores[target] = self.class_scores(im, x[rows], target)
        return scores

    def scores(
        self, im: InstrumentedModel, x: Rows = None, y: Rows = None, classes: Classes = None
    ) -> Scores:
        """Return the sum of the target classes' scores."""
        if x is None or y is None:
            raise InvalidArgumentError(f"{type(self).__name__} needs labelled samples x and y.")
        first, *others = self.by_class(im, x, y, classes).values()
        return {name: sum((one[name] for one in others), first[name]) for name in first}


@dataclass(frozen=True)
class NNSlicerRanker(ClassRanker):
    """Contributions of the synapses to the target classes, by slicing (section 6.2.1).

    The slice of each class is computed from its samples, for its own output, of a map at all
    positions; that of numbers for all of them.

    Attributes:
        profile: The model's profile, or a dict with one for each class; by default, that of the
            given samples. The paper profiles the whole training set, its program each class.
        theta: Threshold θ of the slices, by default that of `Slicer`; 0 is far cheaper.
        granularity, relative_to, rectify, contribution, workers: As in `Slicer`; granularity
            "activation" or "channel"; one thread by default.
        collect: How the contributions for single samples are combined: "netted", summed with their
            signs, as in the paper's Equation 4; "magnitudes", summed without signs, as in the
            paper's program; or "samples", the number of samples whose slices include the synapse.
        progress: Show progress bars.

    Raises InvalidArgumentError if an option is out of range.
    """

    profile: Profile | Mapping[int, Profile] | None = None
    theta: float | None = None
    granularity: str = "activation"
    progress: bool = True
    collect: str = field(default="netted", kw_only=True)
    relative_to: str = field(default="output", kw_only=True)
    rectify: str = field(default="sign", kw_only=True)
    contribution: str = field(default="count", kw_only=True)
    workers: int | None = field(default=0, kw_only=True)
    _slicers: dict[tuple[int, int], Slicer] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_name("way to collect", self.collect, COLLECT)
        theta = check_options(self.theta, self.granularity, self.workers, **self._readings)
        object.__setattr__(self, "theta", theta)

    @property
    def _readings(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("relative_to", "rectify", "contribution")}

    def by_class(
        self, im: InstrumentedModel, x: np.ndarray, y: np.ndarray, classes: Classes = None
    ) -> dict[int, Scores]:
        """Return the contributions for each class."""
        check_classes(im, y, classes)
        if self.profile is None:  # one profile, of the samples of all classes
            profile = Profile.from_data(im, x, progress=self.progress)
            return replace(self, profile=profile).by_class(im, x, y, classes)
        profiles = self.profile.values() if isinstance(self.profile, Mapping) else [self.profile]
        im = im.with_columns(one_order(im.columns, *(one.columns for one in profiles)))
        return super().by_class(im, x, y, classes)

    def class_scores(self, im: InstrumentedModel, x: np.ndarray, target: int) -> Scores:
        """Return the contributions for one class."""
        profile: Any = self.profile[target] if isinstance(self.profile, Mapping) else self.profile
        # A slicer compiles its walk, so it is kept for the other classes.
        key = (id(im), id(profile))
        if key not in self._slicers:
            options: Any = {"workers": self.workers, "progress": self.progress, **self._readings}
            self._slicers[key] = Slicer(im, profile, self.theta, self.granularity, **options)
        slicer = self._slicers[key]
        kind = im.classes
        neurons, sign = kind.neurons(target)
        outputs: Any = {im.logit_operation: neurons.tolist()}
        is_vector = len(im.outputs) == len(neurons) == 1 and not (kind.is_number or kind.is_binary)
        if is_vector and (kind.from_logits(im.logits(x)) == target).all():
            outputs = PREDICTED  # the same slices, whose walk is compiled once for all classes
        if self.collect == "netted":
            synapses = slicer.slice(x, outputs=outputs).synapses
            # Class 0 of one sigmoid has the score −z, to which amounts are opposite; counts, which
            # follow the direction in which the output changed, are equal for both.
            sign = sign if slicer.contribution == "amount" else 1
            return {name: sign * values for name, values in synapses.items()}
        totals = {name: np.zeros(kernel.shape) for name, kernel in im.kernels.items()}
        with progress_bar(f"Slices of class {target}", len(x), self.progress) as bar:
            for part in slicer.iterate(x, outputs=outputs, reduce=_REDUCTIONS[self.collect]):
                for name, values in part.reduced.items():
                    totals[name] += values
                bar.update(len(part.predicted))
        return totals


# Sums over a batch, on the backend: always the same functions, as each one is compiled.
_REDUCTIONS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "magnitudes": lambda synapses: {n: ops.sum(ops.abs(v), 0) for n, v in synapses.items()},
    "samples": lambda synapses: {
        n: ops.sum(ops.cast(v != 0, "float32"), 0) for n, v in synapses.items()
    },
}


RANKERS = ("nnslicer", "weight", "channel", "random")


def scores(
    im: ModelLike,
    method: str | Ranker,
    x: np.ndarray | None = None,
    y: np.ndarray | Mapping[str, np.ndarray] | None = None,
    classes: Iterable[int] | None = None,
    *,
    rng: int | np.random.Generator = 0,
    **options: Any,
) -> Scores:
    """Return how much each synapse matters: kernel name → array of the kernel's shape.

    Args:
        im: The model; a Keras model is instrumented.
        method: "nnslicer" (see `NNSlicerRanker`), "weight" (its magnitude; Han et al., ICLR 2016),
            "channel" (the mean magnitude of the neuron's incoming weights), "random" (0 … 1), or a
            ranker.
        x: Samples `(samples, *input_shape)`; "nnslicer" needs them.
        y: Their classes, `(samples,)` integers, or one-hot; of a map, at each position; or their
            numbers. Of several outputs, a dict by name, whose scores are added.
        classes: The target classes; by default all of `y` ("NNSlicer all"). Numbers have none.
        rng: Draws the scores of "random"; the same seed gives the same scores.
        **options: For "nnslicer": attributes of `NNSlicerRanker`.

    Raises InvalidArgumentError for an unknown method, and if samples, labels or classes do not fit.
    """
    im = instrumented(im, x)
    if not isinstance(method, Ranker):
        check_name("ranker", method, RANKERS)
        method = NNSlicerRanker(**options) if method == "nnslicer" else method
    if isinstance(method, Ranker):
        if not isinstance(y, Mapping):
            return method.scores(im, x, y, classes)
        total = {name: np.zeros(kernel.shape) for name, kernel in im.kernels.items()}
        for output, truth in y.items():
            for name, values in method.scores(im.of_output(output), x, truth, classes).items():
                total[name] += values
        return total
    if options:
        raise InvalidArgumentError(f"Only 'nnslicer' has options. Received: {', '.join(options)}")
    generator, found = as_generator(rng), {}
    for name, kernel in im.kernels.items():
        if method == "random":
            found[name] = generator.random(kernel.shape)
        elif method == "weight":
            found[name] = np.abs(kernel.kernel())
        else:
            weights = np.abs(kernel.matrix())
            means = weights.mean(axis=(0, 1), keepdims=True)
            found[name] = kernel.to_kernel(np.broadcast_to(means, weights.shape))
    return found


def times_weight(
    im: InstrumentedModel, scores: Mapping[str, np.ndarray], power: float = 1.0
) -> dict[str, np.ndarray]:
    """Return |weight| · (|score| / its mean in the kernel + 0.05) ^ power (ours).

    Contributions are integers, often zero, so that many are equal; the weights break these ties.
    Unlike plain scores, the result can be compared between kernels, as in `global_ratios`. `power`
    is the influence of the scores, of the kernels' shapes, relative to the weights; 0 for none.
    Raises InvalidArgumentError for other kernels, shapes and scores.
    """
    weighted = {}
    for name, score in check_scores(scores).items():
        check_name("kernel", name, im.kernels)
        if score.shape != (shape := im.kernels[name].shape):
            raise InvalidArgumentError(
                f"The scores of kernel '{name}' must have shape {shape}. Received: {score.shape}"
            )
        magnitudes = np.abs(score)
        mean = magnitudes.mean()
        relative = magnitudes / mean if mean else np.ones(magnitudes.shape)
        # The constant lets synapses without any score still differ by weight.
        weighted[name] = np.abs(im.kernels[name].kernel()) * (relative + 0.05) ** power
    return weighted


def check_scores(scores: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return scores by kernel as arrays; raise InvalidArgumentError if one is not a number."""
    if not isinstance(scores, Mapping) or not scores:
        raise InvalidArgumentError(
            f"scores must map kernels' names to arrays, as pruning.scores does: {scores!r:.100}"
        )
    arrays = {name: as_array(score) for name, score in scores.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or np.isnan(array).any():
            raise InvalidArgumentError(f"The scores of kernel '{name}' have NaN or are no numbers.")
    return arrays
