"""`generate`: find inputs on which models disagree, by joint gradient ascent.

Pei et al., "DeepXplore: Automated Whitebox Testing of Deep Learning Systems" (SOSP 2017),
Algorithm 1. An input on which all models agree is changed so that one of them, drawn at random,
leaves the common class, and that in every model an uncovered neuron becomes active. Seeds are
processed in batches: a step is one forward and backward pass through each model for all of them.
Models are classifiers with one input and one output.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import _checks
from nnslicer_tf._environment import progress_bar
from nnslicer_tf._files import Archive, Saved
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.deepxplore.constraints import Constraint, ProjectionFunction, find_constraint
from nnslicer_tf.deepxplore.coverage import CountedNeurons, Coverage, NeuronCoverage
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product
from nnslicer_tf.instrument.data import aligned, check_array, one_order
from nnslicer_tf.instrument.outputs import check_classifier
from nnslicer_tf.instrument.plausibility import warn_of_answers


@dataclass(eq=False, repr=False)
class Differences(Saved, ShownAsTable):
    """Difference-inducing inputs, one per row, in the order of discovery.

    Attributes:
        inputs: `(found, *input shape)` float32.
        seed_index: `(found,)` int64, each input's seed.
        predictions: `(found, models)` int64, each model's class.
        labels: `(found,)` int64, the models' common class for the seed, -1 if they disagreed.
        iterations: `(found,)` int64, steps from the seed; 0 if the models disagree on it.
        tried: Number of seeds that were tried.
        seconds: Time of the search.
        coverage: Each model's coverage by the inputs found; not saved, so empty after `load`.
    """

    _format = "nnslicer_tf differences 1"
    _arrays = {  # noqa: RUF012 - not changed
        "inputs": (np.number, "found ..."),
        "seed_index": (np.integer, "found"),
        "predictions": (np.integer, "found models"),
        "labels": (np.integer, "found"),
        "iterations": (np.integer, "found"),
    }
    _numbers = {"tried": (int,), "seconds": (int, float)}  # noqa: RUF012 - not changed

    inputs: np.ndarray
    seed_index: np.ndarray
    predictions: np.ndarray
    labels: np.ndarray
    iterations: np.ndarray
    tried: int
    seconds: float
    coverage: Sequence[Coverage] = ()

    def _check(self, file: Archive) -> None:
        natural = self.seed_index, self.predictions, self.iterations, self.labels + 1
        fits = max(len(self), self.seed_index.max(initial=-1) + 1) <= self.tried
        file.check(fits and all((v >= 0).all() for v in natural), "it has impossible numbers")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def generated(self) -> np.ndarray:
        """Whether each was made by changing a seed, `(found,) bool`; the others are seeds."""
        return self.iterations > 0

    @property
    def success_rate(self) -> float:
        """Inputs generated per seed on which the models agreed; NaN without such seeds."""
        agreed = self.tried - int((~self.generated).sum())
        return float(self.generated.sum() / agreed) if agreed else float("nan")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per input: seed, its label, iterations, every model's prediction."""
        columns = {"seed": self.seed_index, "label": self.labels, "iterations": self.iterations}
        columns |= {f"model {i}": column for i, column in enumerate(self.predictions.T)}
        return pd.DataFrame(columns)

    def plot(self, seeds: np.ndarray, most: int = 8) -> Figure:
        """Draw seeds, and under each the input made from it, titled with the predictions.

        Args:
            seeds: The seeds, `(seeds, height, width, channels)` within 0 … 1.
            most: How many of the generated inputs to draw, starting with the first.

        Raises InvalidArgumentError for other inputs than images, InputShapeError for other seeds.
        """
        from matplotlib import pyplot

        _checks.check_count("most", most)
        seeds = _checks.check_points(seeds, "seeds", self.inputs.shape[1:], 1)
        if seeds.ndim != 4 or seeds.shape[-1] not in (1, 3, 4):
            raise InvalidArgumentError(f"Only images can be drawn. Received shape: {seeds.shape}")
        chosen = np.flatnonzero(self.generated)[:most]
        if len(seeds) <= self.seed_index[chosen].max(initial=0):
            raise InvalidArgumentError(f"Pass the search's {self.tried} seeds, not {len(seeds)}.")
        figure = pyplot.figure(figsize=(max(3, 0.8 * len(chosen)), 2.5), layout="constrained")
        axes = figure.subplots(2, max(1, len(chosen)), squeeze=False)
        for column, row in zip(axes.T, chosen, strict=False):
            pair = seeds[self.seed_index[row]], self.inputs[row]
            for axis, image in zip(column, pair, strict=True):
                axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
            column[1].set_title(", ".join(map(str, self.predictions[row])), fontsize=9)
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        axes[0, 0].set_ylabel("seed", fontsize=9)
        axes[1, 0].set_ylabel("found", fontsize=9)
        figure.supxlabel("above each found input: the models' answers, in order", fontsize=9)
        return figure

    def __repr__(self) -> str:
        inputs, seeds = _checks.counted(len(self), "input"), _checks.counted(self.tried, "seed")
        return (
            f"Differences({inputs} of {self.predictions.shape[1]} models, "
            f"{int(self.generated.sum())} generated from {seeds} in {self.seconds:.1f} s)"
        )


def generate(
    models: Sequence[keras.Model | InstrumentedModel],
    seeds: np.ndarray,
    constraint: str | Constraint | ProjectionFunction = "light",
    *,
    lambda1: float = 1.0,
    lambda2: float = 0.1,
    step: float | None = None,
    max_iterations: int = 50,
    coverage: Sequence[NeuronCoverage] | None = None,
    bounds: tuple[float, float] | None = None,
    rng: int | np.random.Generator = 0,
    labels: _checks.ArrayLike | None = None,
    batch_size: int = 64,
    progress: bool = True,
) -> Differences:
    """Search, from each seed, for an input on which the models disagree.

    Args:
        models: Two or more classifiers of the same inputs and classes.
        seeds: Inputs to start from, `(seeds, *input_shape)`, within `bounds`.
        constraint: `"light"`, `"occlusion"`, `"blackout"`, a `Constraint`, or a function
            `(x, seeds) -> x` that projects changed inputs to valid ones.
        lambda1: Weight of making one model leave the class, against the others keeping it.
        lambda2: Weight of the uncovered neurons; 0 to search only for differences.
        step: Change in one iteration, root mean square over the values that the constraint lets
            change; by default the constraint's, times the width of the bounds.
        max_iterations: Steps after which the search gives up on a seed.
        coverage: One per model, to which the inputs found are added; by default of threshold 0.
        bounds: Smallest and largest value of a valid input; by default those of an instrumented
            model that has some, else 0 and 1.
        rng: Seed or generator of all random choices: models, neurons, rectangles.
        labels: The true classes, integers or one-hot; a warning names a model that misses most.
        batch_size: Seeds processed together.
        progress: Show a progress bar.

    Returns the inputs found, including seeds on which the models already disagree.

    Raises InvalidArgumentError for one model, other classes or columns, tokens, or bad arguments;
    InputShapeError if models or seeds differ in shape; InputRangeError if seeds lie outside the
    bounds; NonFiniteActivationError if seeds or outputs are NaN or infinite.
    """
    constraint, rng = find_constraint(constraint), _checks.as_generator(rng)
    ims = [m if isinstance(m, InstrumentedModel) else InstrumentedModel(m) for m in models]
    bounds = next((im.bounds for im in ims if im.bounds), (0.0, 1.0)) if bounds is None else bounds
    bounds = _checks.check_bounds(bounds)
    step = constraint.step * (bounds[1] - bounds[0]) if step is None else step
    least = {"step": (step, 0), "lambda1": (lambda1, 0), "lambda2": (lambda2, 0)}
    least |= {"max_iterations": (max_iterations, 1), "batch_size": (batch_size, 1)}
    for name, (value, minimum) in least.items():
        _checks.check_number(name, value, f"[{minimum}, inf)")
    seeds, coverage = _checked(ims, seeds, bounds, coverage)
    constraint.begin(seeds.shape[1:], 0, rng)  # rejects inputs that it cannot change

    # Search from the seeds on which the models agree; the others are differences already.
    started = time.perf_counter()
    answers = [im.classes.from_outputs(im.predict(seeds, batch_size)) for im in ims]
    predicted = np.stack(answers, axis=1)
    agree = (predicted == predicted[:, :1]).all(axis=1)
    remedy = "Scale the seeds as for training, or use InstrumentedModel(model, preprocess=…)."
    warn_of_answers(predicted, labels, [f"models[{i}]" for i in range(len(ims))], remedy)
    differences: list[tuple[np.ndarray, ...]] = []  # input, seed, predictions, label, iteration

    def add(x: np.ndarray, *columns: np.ndarray) -> None:
        differences.append((x, *columns))
        for cov in coverage if len(x) else ():
            cov.update(x, batch_size)

    apart, waiting = np.flatnonzero(~agree), np.flatnonzero(agree)
    none = np.full(len(apart), -1)
    add(seeds[apart], apart, predicted[apart], none, np.zeros_like(none))

    # Gradients are compiled once for each model, and kept with it.
    gradients = []
    for im, cov in zip(ims, coverage, strict=True):
        key = (_gradient_and_output, cov.neurons.granularity, cov.neurons.names)
        function = partial(_gradient_and_output, im, cov.neurons)
        gradients.append(im.prepared(key, partial(compiled_function, function)))

    def draw_neurons(cov: NeuronCoverage, count: int) -> np.ndarray:
        """Draw neurons to activate, without repetition while enough are uncovered."""
        covered = np.concatenate([mask.ravel() for mask in cov.covered.values()])
        candidates = np.arange(len(covered)) if covered.all() else np.flatnonzero(~covered)
        return np.resize(rng.permutation(candidates), count)

    def start(index: np.ndarray) -> dict[str, np.ndarray]:
        """Return the state of searches from some seeds, one per row of every array."""
        return {
            "seed": index,
            "x": seeds[index],
            "label": predicted[index, 0],
            "iteration": np.zeros(len(index), int),
            "deviant": rng.integers(len(ims), size=len(index)),  # is to leave the label
            "neuron": np.stack([draw_neurons(cov, len(index)) for cov in coverage], axis=1),
            "state": constraint.begin(seeds.shape[1:], len(index), rng),
        }

    tried = len(apart)
    active = start(waiting[:0])
    with progress_bar("Seeds", len(waiting), progress) as bar:
        while True:
            # Fill the batch with new seeds.
            room = batch_size - len(active["seed"])
            new, waiting = waiting[:room], waiting[room:]
            tried += len(new)
            added = start(new)
            active = {name: np.concatenate([part, added[name]]) for name, part in active.items()}
            if not len(active["seed"]):
                break

            # One forward and backward pass through every model.
            gradient, outputs = np.zeros_like(active["x"]), []
            for i, (im, compute) in enumerate(zip(ims, gradients, strict=True)):
                weight = np.where(active["deviant"] == i, -lambda1, 1.0).astype(np.float32)
                label = active["label"].astype(np.int32)
                neuron = active["neuron"][:, i].astype(np.int32)
                arguments = (active["x"], weight, label, neuron, np.float32(lambda2))
                part, output = compute(*map(keras.ops.convert_to_tensor, arguments))
                gradient = gradient + keras.ops.convert_to_numpy(part)
                outputs.append(im.classes.from_outputs(keras.ops.convert_to_numpy(output)))
            predictions = np.stack(outputs, axis=1)
            differ = (predictions != predictions[:, :1]).any(axis=1)
            done = {name: part[differ] for name, part in active.items()}
            add(done["x"], done["seed"], predictions[differ], done["label"], done["iteration"])
            going = ~differ & (active["iteration"] < max_iterations)
            bar.update(int((~going).sum()))
            active, gradient = {n: part[going] for n, part in active.items()}, gradient[going]
            if not going.any():
                continue

            # A step has a root mean square of `step` over the values that change.
            direction = constraint.direction(gradient, active["state"], rng)
            axes = tuple(range(1, direction.ndim))
            changing = np.maximum((direction != 0).sum(axis=axes, keepdims=True), 1)
            square = (direction.astype(np.float64) ** 2).sum(axis=axes, keepdims=True) / changing
            unit = (direction / np.where(square > 0, np.sqrt(square), 1.0)).astype(np.float32)
            x = constraint.project(active["x"] + step * unit, seeds[active["seed"]])
            active["x"] = np.clip(x, *bounds, dtype=np.float32)
            active["iteration"] = active["iteration"] + 1
    seconds = time.perf_counter() - started
    x, index, predictions, label, iteration = map(np.concatenate, zip(*differences, strict=True))
    return Differences(x, index, predictions, label, iteration, tried, seconds, tuple(coverage))


def _gradient_and_output(
    im: InstrumentedModel,
    neurons: CountedNeurons,
    x: Any,
    weight: Any,
    label: Any,
    neuron: Any,
    lambda2: Any,
) -> tuple[Any, Any]:
    """Return the gradient of a model's part of the objective, and the model's output, as tensors.

    `x` `(batch, …)` are inputs, `weight` factors of the logits `label`, and `neuron` the indices of
    the neurons to activate, with the factor `lambda2`; all `(batch,)`.
    """

    def at(values: Any, index: Any) -> Any:
        return keras.ops.take_along_axis(values, index[:, None], axis=1)[:, 0]

    def objective(x: Any) -> Any:
        values = im.compute(x, (im.logit_operation, *neurons.names))
        scores = values[im.logit_operation]
        if im.classes.is_binary:
            scores = keras.ops.concatenate([-scores, scores], axis=1)
        return weight * at(scores, label) + lambda2 * at(neurons.vector(values), neuron)

    (gradient,) = vector_jacobian_product(objective, [x], keras.ops.ones_like(weight))
    # The forward pass is shared: the compiler computes it only once.
    output = im.output_operations[0]
    return gradient, im.compute(x, (output,))[output]


def _checked(
    ims: Sequence[InstrumentedModel],
    seeds: np.ndarray,
    bounds: tuple[float, float],
    coverage: Sequence[NeuronCoverage] | None,
) -> tuple[np.ndarray, list[NeuronCoverage]]:
    """Check models, seeds and coverage; return float32 seeds and one coverage per model."""
    if len(ims) < 2:
        raise InvalidArgumentError(f"Pass two or more models. Received: {len(ims)}")
    shapes = {im.model.name: im.input_shape for im in ims}
    if len({im.input_shape for im in ims}) > 1:
        raise InputShapeError(f"All models must take inputs of the same shape. Received: {shapes}")
    classes = [check_classifier(im) for im in ims]
    if len(set(classes)) > 1:
        raise InvalidArgumentError(f"Models must have the same classes. Received: {classes}")

    if any(im.graph.vocabulary(im.input_operation) is not None for im in ims):
        raise InvalidArgumentError(
            "The models take tokens, which no gradient changes: use dflare.find_deviations."
        )
    coverage = [NeuronCoverage(im) for im in ims] if coverage is None else list(coverage)
    if len(coverage) != len(ims):
        raise InvalidArgumentError(
            f"coverage must have one entry for each of {len(ims)} models. Received: {len(coverage)}"
        )
    known: list[tuple[str, ...]] = []  # columns of models and coverage, or else of the seeds
    for position, (cov, im) in enumerate(zip(coverage, ims, strict=True)):
        if not isinstance(cov, NeuronCoverage) or cov.im.identity != im.identity:
            raise InvalidArgumentError(
                f"coverage[{position}] is not a NeuronCoverage of models[{position}]: {cov!r}"
            )
        known += [c for c in (im.columns, cov.im.columns) if c] or [im.named_by(seeds).columns]
    seeds = check_array(aligned(seeds, one_order(*known)), ims[0].input_shape, bounds=bounds)
    if not len(seeds):
        raise InputShapeError("There are no seeds: pass at least one.")
    return seeds, coverage
