"""Metrics of attributions: by interventions, by their stability, by a sanity check.

`deletion` and `insertion` (Petsiuk et al., "RISE", BMVC 2018, section 4.2), `mu_fidelity` and
`sensitivity` (Bhatt et al., "Evaluating and Aggregating Feature-based Model Explanations", IJCAI
2020, definitions 3 and 2), and `randomisation` (Adebayo et al., "Sanity Checks for Saliency Maps",
NeurIPS 2018). Values equal those of Xplique 2.0. Cost: a forward pass per point of a curve or
subset, an attribution per neighbour.

Models, samples, baselines, targets and errors are those of `attributions.Attribution`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import as_generator, check_count
from nnslicer_tf.attributions.problem import Problem
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.target import TargetLike


@dataclass(frozen=True, eq=False)
class Curve:
    """The answer as units (pixels, tokens, columns) are hidden or shown."""

    shares: np.ndarray  # share of the units, ascending from 0 to 1
    answers: np.ndarray  # probability of the class, or the explained value, at each share

    @property
    def area(self) -> float:
        """Area under the curve: the mean answer."""
        return float(np.trapezoid(self.answers, self.shares))


def curves(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    methods: Mapping[str, Any],
    steps: int = 40,
) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Return the deletion and the insertion curves of attributions by several methods.

    Args:
        im: The model.
        x: A sample.
        baseline: Values that replace hidden units. A unit is a pixel, token or time step with all
            its channels, or an entry of a sample with one axis.
        target: What is explained.
        methods: Method → its attributions; ties are broken at random, with a fixed seed.
        steps: Number of points after the first, at least 1.
    """
    check_count("steps", steps)
    problem = Problem(im, x, baseline, target)
    shuffled = np.random.default_rng(0).permutation(problem.units)  # breaks ties
    counts = np.linspace(0, problem.units, steps + 1).astype(int)
    shares = np.linspace(0, 1, steps + 1)
    deletions, insertions = {}, {}
    for name, values in methods.items():
        of_units = problem.of_units(values)
        ranks = np.empty(problem.units, int)
        ranks[shuffled[np.argsort(-of_units[shuffled], kind="stable")]] = np.arange(problem.units)
        is_first = ranks < counts[:, None]
        answers = problem.answers(problem.hidden(np.concatenate([is_first, ~is_first])))
        deletions[name] = Curve(shares, answers[: steps + 1])
        insertions[name] = Curve(shares, answers[steps + 1 :])
    return deletions, insertions


def deletion(
    im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike, values: Any, steps: int = 40
) -> Curve:
    """Return the answer as the units of largest `values` are hidden; smaller areas are better."""
    return curves(im, x, baseline, target, {"": values}, steps)[0][""]


def insertion(
    im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike, values: Any, steps: int = 40
) -> Curve:
    """Return the answer as the units of largest `values` are shown; larger areas are better."""
    return curves(im, x, baseline, target, {"": values}, steps)[1][""]


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
    """Return how well sums of attributions predict the decrease of the score.

    Random subsets of the units are replaced by the baseline; the result is Spearman's correlation
    of the decrease of the score with the sum of the subset's attributions, 0 if one is constant.

    Each of `samples` subsets has a unit with the probability `share`; `rng` draws them, unless they
    are given as `subsets` `(samples, units)` bool. `values` are the attributions of the inputs.
    """
    check_count("samples", samples)
    problem = Problem(im, x, baseline, target)
    of_units = problem.of_units(values)
    if subsets is None:
        subsets = as_generator(rng).random((samples, problem.units)) < share
    whole = problem.scores(problem.hidden(np.zeros((1, problem.units))))
    falls = whole - problem.scores(problem.hidden(subsets))
    return _rank_correlation(falls, subsets @ of_units)


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

    `method` is an `Attribution`, and the model has one input of real numbers. The neighbours are
    the sample plus noise, uniform from 0 to `radius` and drawn by `rng`, unless it is given as
    `noise` `(samples, *input shape)`.
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

    A method whose attributions hardly change does not explain the model. In the copy, all variables
    of the last quarter of the layers with weights, at least one, are uniform in [0, 1], drawn by
    `rng`, unless the copy's `weights` are given, as for `keras.Model.set_weights`.
    """
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
    both = [keras.tree.flatten(method(m, x, baseline, target)) for m in (im, copy)]
    return _rank_correlation(*(np.concatenate([np.ravel(v) for v in values]) for values in both))


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's correlation; 0 if one is constant."""
    from scipy.stats import spearmanr

    return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b)[0])
