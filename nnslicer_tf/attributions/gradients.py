"""Attributions by gradients: at the sample, or along a line from a baseline to it.

Cost: one gradient for gradient × input, one per step or sample for the others.
"""

from typing import Any

import numpy as np

from nnslicer_tf.attributions.problem import Features, Problem
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.target import TargetLike


def gradient_times_input(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return the score's gradient times the difference between sample and baseline.

    With a baseline of zero, this is gradient × input (Shrikumar et al., 2016).
    """
    problem = Problem(im, x, baseline, target)
    return mean_gradient(problem, {n: v[None] for n, v in problem.x.items()})


def sampled_gradients(
    im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike, *, samples: int = 50
) -> Any:
    """Return integrated gradients by the trapezoidal rule (Sundararajan et al., ICML 2017).

    They add up to the change of the score, up to the error of the rule, with `samples` steps from
    the baseline to the sample. Embeddings of tokens are interpolated.
    """
    problem = Problem(im, x, baseline, target)
    weights = np.full(samples + 1, 1 / samples)
    weights[[0, -1]] /= 2
    return mean_gradient(problem, between(problem, np.linspace(0, 1, samples + 1)), weights)


def between(problem: Problem, ratios: np.ndarray) -> Features:
    """Return points on the line from the baseline (0) to the sample (1)."""
    return {
        name: problem.baseline[name]
        + ratios.reshape(-1, *[1] * value.ndim) * (value - problem.baseline[name])
        for name, value in problem.x.items()
    }


def mean_gradient(problem: Problem, features: Features, weights: np.ndarray | None = None) -> Any:
    """Return the mean, or weighted mean, of the gradients at some features, times x − baseline."""
    gradients = problem.gradients(features).items()
    return problem.attributions({k: np.average(v, axis=0, weights=weights) for k, v in gradients})
