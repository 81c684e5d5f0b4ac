"""`generate`: find inputs on which models disagree, by joint gradient ascent.

Pei et al., "DeepXplore: Automated Whitebox Testing of Deep Learning Systems" (SOSP 2017),
Algorithm 1. From a seed on which all models agree, the input is changed so that one of
them, drawn at random, leaves the common class while the others keep it, and that in every
model a neuron not yet covered becomes active. Labels are not needed.

Many seeds are processed together, so that a step is one forward and backward pass through each
model for all of them; a finished seed is replaced by the next.

Limits: classifiers with one input and one output. Memory: the activations of one batch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike
from tqdm.auto import tqdm

from nnslicer_tf._checks import as_generator, check_labels
from nnslicer_tf.deepxplore.constraints import Constraint, find_constraint
from nnslicer_tf.deepxplore.coverage import Coverage, NeuronCoverage
from nnslicer_tf.deepxplore.differences import Differences
from nnslicer_tf.deepxplore.neurons import Neurons
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, check_array
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product

_MIN_SEEDS = 8  # fewer seeds say nothing about the models
_MIN_RIGHT, _MIN_AGREE = 0.5, 0.25


def generate(
    models: Sequence[keras.Model | InstrumentedModel],
    seeds: np.ndarray,
    constraint: str | Constraint | Callable[[np.ndarray, np.ndarray], np.ndarray] = "light",
    *,
    lambda1: float = 1.0,
    lambda2: float = 0.1,
    step: float | None = None,
    max_iterations: int = 50,
    coverage: Sequence[NeuronCoverage] | None = None,
    desired_coverage: float | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    rng: int | np.random.Generator = 0,
    labels: ArrayLike | None = None,
    batch_size: int = 64,
    progress: bool = True,
) -> Differences:
    """Search, from each seed, for an input on which the models disagree.

    Args:
        models: Two or more classifiers of the same inputs and classes.
        seeds: Inputs to start from, `(seeds, *input_shape)`, within `bounds`; no labels.
        constraint: `"light"`, `"occlusion"`, `"blackout"`, a `Constraint`, or a function
            `(x, seeds) -> x` that projects changed inputs to valid ones.
        lambda1: Weight of making one model leave the class, against the others keeping it.
        lambda2: Weight of the uncovered neurons; 0 to search only for differences.
        step: Change in one iteration: root mean square over the values that the
            constraint lets change. By default the constraint's, times the width of the bounds.
        max_iterations: Steps after which the search gives up on a seed.
        coverage: One for each model, to which the inputs found are added; by default new
            ones with threshold 0.
        desired_coverage: Start no more seeds once every model's coverage is at least this.
        bounds: Least and largest value of a valid input.
        rng: Seed or generator of all random choices: models, neurons, rectangles.
        labels: The true classes of the seeds, integers or one-hot. If given, every model must be
            right on half of the seeds.
        batch_size: How many seeds are processed together.
        progress: Show a progress bar.

    Returns:
        The inputs found, including seeds on which the models already disagree, with 0
        iterations.

    Raises:
        InvalidArgumentError: if there are fewer than two models, they differ in their
            classes or have fewer than two, an argument is out of range, a model is wrong on most
            seeds, by `labels`, or the models disagree on most (usually because the seeds are not
            scaled as in training).
        InputShapeError: if the models take inputs of different shapes, or the seeds have
            another or lie outside the bounds.
        NonFiniteActivationError: if seeds or outputs are NaN or infinite.
    """
    constraint, rng = find_constraint(constraint), as_generator(rng)
    ims = [m if isinstance(m, InstrumentedModel) else InstrumentedModel(m) for m in models]
    _check_models(ims)
    step = constraint.step * (bounds[1] - bounds[0]) if step is None else step
    least = {"step": (step, 0), "lambda1": (lambda1, 0), "lambda2": (lambda2, 0)}
    least |= {"max_iterations": (max_iterations, 1), "batch_size": (batch_size, 1)}
    for name, (value, minimum) in least.items():
        if not value >= minimum:
            raise InvalidArgumentError(f"{name} must be at least {minimum}. Received: {value!r}")
    seeds = _check_seeds(seeds, ims[0].input_shape, bounds)
    coverage = [NeuronCoverage(im) for im in ims] if coverage is None else list(coverage)
    if len(coverage) != len(ims):
        raise InvalidArgumentError(
            f"One coverage is needed for each of {len(ims)} models. Received: {len(coverage)}"
        )
    for position, (cov, im) in enumerate(zip(coverage, ims, strict=True)):
        if not isinstance(cov, NeuronCoverage):
            raise InvalidArgumentError(
                f"coverage[{position}] must be a NeuronCoverage, whose uncovered neurons are "
                f"pursued. Received: {cov!r}"
            )
        if cov.im is not im and cov.im.fingerprint != im.fingerprint:
            raise InvalidArgumentError(f"coverage[{position}] is not of models[{position}].")
    constraint.begin(seeds.shape[1:], 0, rng)  # rejects inputs that it cannot change

    started = time.perf_counter()
    predicted = np.stack(
        [im.classes.from_outputs(im.predict(seeds, batch_size)) for im in ims], axis=1
    )
    agree = (predicted == predicted[:, :1]).all(axis=1)
    _check_answers(predicted, agree, labels)
    found: list[tuple[np.ndarray, ...]] = []  # input, seed, predictions, label, iteration

    def add(x: np.ndarray, *columns: np.ndarray) -> None:
        found.append((x, *columns))
        for cov in coverage if len(x) else ():
            cov.update(x, batch_size)

    apart = np.flatnonzero(~agree)
    none = np.full(len(apart), -1)
    add(seeds[apart], apart, predicted[apart], none, np.zeros_like(none))
    ascents = [_Ascent(im, cov, lambda1, lambda2) for im, cov in zip(ims, coverage, strict=True)]

    def start(index: np.ndarray) -> _Active:
        return _Active(
            seed=index,
            x=seeds[index],
            label=predicted[index, 0],
            iteration=np.zeros(len(index), int),
            turned=rng.integers(len(ims), size=len(index)),
            neuron=np.stack([a.draw_neurons(len(index), rng) for a in ascents], axis=1),
            kept=constraint.begin(seeds.shape[1:], len(index), rng),
        )

    waiting = np.flatnonzero(agree)
    tried = len(apart)
    active = start(waiting[:0])
    with tqdm(total=len(waiting), desc="Seeds", disable=not progress, leave=False) as bar:
        while True:
            if desired_coverage is not None and all(
                cov.total() >= desired_coverage for cov in coverage
            ):
                waiting = waiting[:0]
            room = batch_size - len(active)
            new, waiting = waiting[:room], waiting[room:]
            active, tried = active.join(start(new)), tried + len(new)
            if not len(active):
                break
            parts = [
                ascent(active.x, active.label, active.turned == i, active.neuron[:, i])
                for i, ascent in enumerate(ascents)
            ]
            gradient = np.sum([one for one, _ in parts], axis=0)
            predictions = np.stack([classes for _, classes in parts], axis=1)
            differ = (predictions != predictions[:, :1]).any(axis=1)
            done = active[differ]
            add(done.x, done.seed, predictions[differ], done.label, done.iteration)
            going = ~differ & (active.iteration < max_iterations)
            bar.update(int((~going).sum()))
            active, gradient = active[going], gradient[going]
            # A step has a root mean square of `step` over the values that change.
            direction = constraint.direction(gradient, active.kept, rng)
            axes = tuple(range(1, direction.ndim))
            changing = np.maximum((direction != 0).sum(axis=axes, keepdims=True), 1)
            square = (direction.astype(np.float64) ** 2).sum(axis=axes, keepdims=True) / changing
            unit = (direction / np.where(square > 0, np.sqrt(square), 1.0)).astype(np.float32)
            x = constraint.project(active.x + step * unit, seeds[active.seed])
            active.x = np.clip(x, *bounds, dtype=np.float32)
            active.iteration = active.iteration + 1
    seconds = time.perf_counter() - started
    x, index, predictions, label, iteration = map(np.concatenate, zip(*found, strict=True))
    return Differences(x, index, predictions, label, iteration, tried, seconds, tuple(coverage))


@dataclass
class _Active:
    """The seeds in progress, one per row of every array."""

    seed: np.ndarray  # index of the seed
    x: np.ndarray
    label: np.ndarray  # the class on which the models agreed
    iteration: np.ndarray
    turned: np.ndarray  # the model that should leave the label
    neuron: np.ndarray  # (rows, models), the neuron to activate
    kept: np.ndarray  # the constraint's state

    def __len__(self) -> int:
        return len(self.seed)

    def __getitem__(self, rows: np.ndarray) -> "_Active":
        return _Active(*(getattr(self, field.name)[rows] for field in fields(self)))

    def join(self, other: "_Active") -> "_Active":
        """Concatenate both, the other's rows last."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return _Active(*(np.concatenate(pair) for pair in pairs))


class _Ascent:
    """One model's part of the joint objective, and its gradient."""

    def __init__(
        self, im: InstrumentedModel, coverage: Coverage, lambda1: float, lambda2: float
    ) -> None:
        self._coverage = coverage
        self._classes = im.classes
        self._weights = (1.0, -lambda1)
        self._lambda2 = np.float32(lambda2)
        neurons = coverage.neurons
        self._compute = im.prepared(
            (_gradient_and_output, neurons.granularity, neurons.names),
            lambda: compiled_function(partial(_gradient_and_output, im, neurons)),
        )

    def draw_neurons(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw neurons to activate, without repetition while enough are uncovered."""
        masks = [mask.ravel() for mask in self._coverage.covered.values()]
        candidates = np.flatnonzero(~np.concatenate(masks))
        if not len(candidates):
            candidates = np.arange(len(self._coverage.neurons))
        return np.resize(rng.permutation(candidates), count)

    def __call__(
        self, x: np.ndarray, label: np.ndarray, turned: np.ndarray, neuron: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the objective's gradient at `x`, and the predicted classes there."""
        weight = np.where(turned, self._weights[1], self._weights[0]).astype(np.float32)
        indices = (label.astype(np.int32), neuron.astype(np.int32))
        tensors = map(keras.ops.convert_to_tensor, (x, weight, *indices, self._lambda2))
        gradient, output = map(keras.ops.convert_to_numpy, self._compute(*tensors))
        return gradient, self._classes.from_outputs(output)


def _gradient_and_output(
    im: InstrumentedModel,
    neurons: Neurons,
    x: Any,
    weight: Any,
    label: Any,
    neuron: Any,
    lambda2: Any,
) -> tuple[Any, Any]:
    """Return the gradient of a model's part of the objective, and the model's output, as tensors.

    `x` are inputs `(batch, …)`, `weight` factors of the logits with the indices `label`, and
    `neuron` the indices of the neurons to activate, with the factor `lambda2`; all `(batch,)`.
    """

    def objective(x: Any) -> Any:
        values = im.compute(x, (im.logit_operation, *neurons.names))
        scores = values[im.logit_operation]
        if im.classes.is_binary:
            scores = keras.ops.concatenate([-scores, scores], axis=1)
        return weight * _pick(scores, label) + lambda2 * _pick(neurons.vector(values), neuron)

    (gradient,) = vector_jacobian_product(objective, [x], keras.ops.ones_like(weight))
    # The forward pass is shared: the compiler computes it only once.
    output = im.output_operations[0]
    return gradient, im.compute(x, (output,))[output]


def _pick(values: Any, index: Any) -> Any:
    """Return the value at `index` of every row."""
    return keras.ops.take_along_axis(values, index[:, None], axis=1)[:, 0]


def _check_models(ims: Sequence[InstrumentedModel]) -> None:
    if len(ims) < 2:
        raise InvalidArgumentError(
            f"Differences are between two or more models. Received: {len(ims)}"
        )
    shapes = {im.model.name: im.input_shape for im in ims}
    if len({im.input_shape for im in ims}) > 1:
        raise InputShapeError(f"All models must take inputs of the same shape. Received: {shapes}")
    outputs = {im.model.name: im[im.output_operations[0]].shape for im in ims}
    counts = {im.classes.count for im in ims}
    if len(counts) > 1 or any(len(shape) != 1 for shape in outputs.values()):
        raise InvalidArgumentError(
            f"All models must classify into the same classes: one output of shape (classes,), or "
            f"one sigmoid. Received: {outputs}"
        )
    if counts == {1}:
        raise InvalidArgumentError(
            "Models must tell two classes or more apart. Received models with one output that is "
            "no sigmoid, such as regression models."
        )


def _check_seeds(
    seeds: np.ndarray, shape: tuple[int, ...], bounds: tuple[float, float]
) -> np.ndarray:
    seeds = check_array(seeds, shape)
    if not len(seeds):
        raise InputShapeError("There are no seeds: pass at least one.")
    low, high = bounds
    outside = ((seeds < low) | (seeds > high)).reshape(len(seeds), -1).any(axis=1)
    if outside.any():
        raise InputShapeError(
            f"Seed {int(outside.argmax())} has values outside bounds={bounds}: it ranges from "
            f"{seeds[outside.argmax()].min():.4g} to {seeds[outside.argmax()].max():.4g}."
        )
    return seeds


def _check_answers(predicted: np.ndarray, agree: np.ndarray, labels: ArrayLike | None) -> None:
    """Reject seeds that the models do not seem to be made for.

    Args:
        predicted: Each model's class for each seed, `(seeds, models)`.
        agree: Whether all models predict the same, `(seeds,)`.
        labels: The true classes, if they are known.
    """
    remedy = (
        "Scale the seeds as for training, or bind the scaling to each model with "
        "InstrumentedModel(model, preprocess=…)."
    )
    if labels is not None:
        right = (predicted == check_labels(labels, len(predicted))[:, None]).mean(axis=0)
        if len(predicted) >= _MIN_SEEDS and right.min() < _MIN_RIGHT:
            raise InvalidArgumentError(
                f"models[{int(right.argmin())}] is right on {right.min():.0%} of the seeds. "
                f"{remedy}"
            )
    if len(predicted) >= _MIN_SEEDS and agree.mean() < _MIN_AGREE:
        raise InvalidArgumentError(
            f"The models agree on {agree.mean():.0%} of the seeds as they are. {remedy}"
        )
