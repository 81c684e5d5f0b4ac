"""Metrics that judge attributions: by interventions, by their stability, by a sanity check.

`deletion` and `insertion` (Petsiuk et al., "RISE", BMVC 2018, section 4.2), `mu_fidelity` and
`sensitivity` (Bhatt et al., "Evaluating and Aggregating Feature-based Model Explanations", IJCAI
2020, definitions 3 and 2), and `randomisation` (Adebayo et al., "Sanity Checks for Saliency Maps",
NeurIPS 2018). Their values equal those of Xplique 2.0. Cost: a forward pass for each point of a
curve or each subset, an attribution for each neighbour.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import as_generator, check_count
from nnslicer_tf.attributions._problem import Problem
from nnslicer_tf.attributions._target import TargetLike
from nnslicer_tf.instrument import InstrumentedModel


@dataclass(frozen=True, eq=False)
class Curve:
    """The answer as units (pixels, tokens, columns) are hidden or shown.

    Attributes:
        shares: Share of the units, ascending from 0 to 1.
        answers: Probability of the class, or the explained value, at each share.
    """

    shares: np.ndarray
    answers: np.ndarray

    @property
    def area(self) -> float:
        """Area under the curve: the mean answer."""
        return float(np.trapezoid(self.answers, self.shares))


def deletion(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    values: Any,
    steps: int = 40,
) -> Curve:
    """Return the answer as a sample's units are replaced by the baseline, largest value first.

    The smaller the area, the better the attribution. A unit is a pixel, token or time step with
    all its channels, or an entry of a sample with one axis.

    Args:
        im: The model.
        x: A sample, as for `Attribution`.
        baseline: Values that replace hidden units, as for `Attribution`.
        target: What is explained, as for `Attribution`.
        values: Attributions of the inputs; ties are broken at random, with a fixed seed.
        steps: Number of points after the first, at least 1.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    return _curve(Problem(im, x, baseline, target), values, steps, np.less)


def insertion(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    values: Any,
    steps: int = 40,
) -> Curve:
    """Return the answer as a sample's units replace the baseline, largest value first.

    The larger the area, the better the attribution. Arguments are those of `deletion`.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    return _curve(Problem(im, x, baseline, target), values, steps, np.greater_equal)


def mu_fidelity(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    values: Any,
    *,
    share: float = 0.2,
    samples: int = 200,
    rng: int | np.random.Generator = 0,
    subsets: np.ndarray | None = None,
) -> float:
    """Return how well sums of attributions predict how far the score falls.

    Random subsets of the units are replaced by the baseline; the result is Spearman's correlation
    of the decrease of the score with the sum of the subset's attributions, 0 if one is constant.

    Args:
        im: The model.
        x: A sample, as for `Attribution`.
        baseline: Values that replace hidden units, as for `Attribution`.
        target: What is explained, as for `Attribution`.
        values: Attributions of the inputs.
        share: Probability with which a unit is in a subset.
        samples: Number of subsets.
        rng: Seed or generator of the subsets.
        subsets: The subsets instead, `(samples, units)` bool.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    from scipy.stats import spearmanr

    check_count("samples", samples)
    problem = Problem(im, x, baseline, target)
    of_units = problem.of_units(values)
    if subsets is None:
        subsets = as_generator(rng).random((samples, problem.units)) < share
    whole = problem.scores(problem.hidden(np.zeros((1, problem.units))))
    falls = whole - problem.scores(problem.hidden(subsets))
    sums = subsets @ of_units
    if np.ptp(falls) == 0 or np.ptp(sums) == 0:
        return 0.0
    return float(spearmanr(falls, sums)[0])


def sensitivity(
    method: Callable[..., Any],
    im: InstrumentedModel,
    x: np.ndarray,
    baseline: Any,
    target: TargetLike,
    *,
    radius: float = 0.1,
    samples: int = 20,
    rng: int | np.random.Generator = 0,
    noise: np.ndarray | None = None,
) -> float:
    """Return the mean Euclidean distance between attributions of a sample and of its neighbours.

    Args:
        method: An `Attribution`.
        im: A model with one input of real numbers.
        x: A sample, of the model's input shape.
        baseline: The baseline.
        target: What is explained.
        radius: Largest value of the uniform noise, from 0, that is added to the sample.
        samples: Number of neighbours.
        rng: Seed or generator of the noise.
        noise: The noise instead, `(samples, *input shape)`.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    check_count("samples", samples)
    values = method(im, x, baseline, target)
    if noise is None:
        noise = as_generator(rng).uniform(0, radius, (samples, *np.shape(x)))
    near = [method(im, x + part.astype(np.float32), baseline, target) for part in noise]
    return float(np.mean([np.linalg.norm(other - values) for other in near]))


def randomisation(
    method: Callable[..., Any],
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    *,
    rng: int | np.random.Generator = 0,
    weights: Any = None,
) -> float:
    """Return Spearman's correlation of attributions by the model and by a randomised copy.

    A method whose attributions hardly change does not explain the model. In the copy, all
    variables of the last quarter of the layers with weights, at least one, are uniform in [0, 1].

    Args:
        method: An `Attribution`.
        im: The model.
        x: A sample, as for `Attribution`.
        baseline: The baseline.
        target: What is explained.
        rng: Seed or generator of the random weights.
        weights: The copy's weights instead, as for `keras.Model.set_weights`.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    from scipy.stats import spearmanr

    copy = im.copy()
    if weights is None:
        random = as_generator(rng)
        layers = [layer for layer in copy.model._flatten_layers() if layer._layers == []]
        layers = [layer for layer in layers if layer.weights]
        for layer in layers[-max(1, len(layers) // 4) :]:
            for variable in layer.weights:
                variable.assign(random.random(variable.shape).astype(np.float32))
    else:
        copy.model.set_weights(weights)
    both = [method(m, x, baseline, target) for m in (im, copy)]
    before, after = (np.concatenate([np.ravel(v) for v in keras.tree.flatten(b)]) for b in both)
    if np.ptp(before) == 0 or np.ptp(after) == 0:
        return 0.0
    return float(spearmanr(before, after)[0])


def _curve(problem: Problem, values: Any, steps: int, hides: Any) -> Curve:
    """Return the answers while units are hidden whose rank is less than a count, or not."""
    check_count("steps", steps)
    of_units = problem.of_units(values)
    shuffled = np.random.default_rng(0).permutation(len(of_units))  # breaks ties
    ranks = np.empty(len(of_units), int)
    ranks[shuffled[np.argsort(-of_units[shuffled], kind="stable")]] = np.arange(len(of_units))
    counts = np.linspace(0, len(ranks), steps + 1).astype(int)
    answers = problem.answers(problem.hidden(hides(ranks, counts[:, None])))
    return Curve(np.linspace(0, 1, steps + 1), answers)
