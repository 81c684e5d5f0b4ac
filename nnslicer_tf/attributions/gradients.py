"""Attributions by gradients: at the sample, around it, or along a line from a baseline to it.

Cost: one gradient for gradient × input, one for each step or sample of the others. Exact
integrated gradients partition the line first (see `exactline`).
"""

from typing import Any

import numpy as np

from nnslicer_tf._checks import as_generator
from nnslicer_tf.attributions._problem import Features, Problem
from nnslicer_tf.attributions._target import TargetLike
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.exactline import integrated_gradients
from nnslicer_tf.instrument import InstrumentedModel

_SAMPLES = 50


def gradient_times_input(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return the score's gradient times the difference between sample and baseline.

    With a baseline of zero, this is gradient × input (Shrikumar et al., 2016).

    Args:
        im: The model.
        x: A sample, as for `Attribution`.
        baseline: Values that represent absent features, as for `Attribution`.
        target: What is explained, as for `Attribution`.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    problem = Problem(im, x, baseline, target)
    return _times_difference(problem, {n: v[None] for n, v in problem.x.items()}, np.ones(1))


def exact_gradients(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return exact integrated gradients; see `exactline.integrated_gradients`.

    Arguments are those of `gradient_times_input`.

    Raises:
        UnsupportedLayerError: if the model is not piecewise linear, takes tokens or several
            inputs, or the target is not an output neuron.
    """
    problem = Problem(im, x, baseline, target)
    chosen = problem.target
    if set(problem.x) != set(im.input_operations) or len(problem.x) > 1:
        raise UnsupportedLayerError(
            "Exact integrated gradients need a model with one input of real numbers; use sampled "
            "ones, attributions.sampled_gradients."
        )
    if chosen.operation != im.logit_operation or len(chosen.neurons) > 1:
        raise UnsupportedLayerError(
            "Exact integrated gradients explain one neuron of the first output; use sampled ones, "
            "attributions.sampled_gradients."
        )
    (x,), (baseline,) = problem.x.values(), problem.baseline.values()
    return chosen.sign * integrated_gradients(im, x, baseline, chosen.neurons[0])


def sampled_gradients(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    *,
    samples: int = _SAMPLES,
) -> Any:
    """Return integrated gradients by the trapezoidal rule (Sundararajan et al., ICML 2017).

    The attributions add up to the change of the score, up to the error of the sum.

    Args:
        im: The model; it may take tokens, whose embeddings are interpolated.
        x: A sample, as for `Attribution`.
        baseline: Start of the line, as for `Attribution`.
        target: What is explained, as for `Attribution`.
        samples: Number of steps.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    problem = Problem(im, x, baseline, target)
    weights = np.full(samples + 1, 1 / samples)
    weights[[0, -1]] /= 2
    return _times_difference(problem, _between(problem, np.linspace(0, 1, samples + 1)), weights)


def smooth_gradients(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    *,
    samples: int = _SAMPLES,
    noise: float = 0.1,
    rng: int | np.random.Generator = 0,
) -> Any:
    """Return the mean gradient at noisy samples, times the difference from the baseline.

    SmoothGrad (Smilkov et al., 2017), in its form that multiplies by the input.

    Args:
        im: The model.
        x: A sample, as for `Attribution`.
        baseline: Values that represent absent features, as for `Attribution`.
        target: What is explained, as for `Attribution`.
        samples: Number of noisy samples.
        noise: Standard deviation of the noise, as a share of the range of the sample's values.
        rng: Seed or generator of the noise.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    problem = Problem(im, x, baseline, target)
    random = as_generator(rng)
    around = {
        name: value + random.normal(0, noise * float(np.ptp(value)), (samples, *value.shape))
        for name, value in problem.x.items()
    }
    return _times_difference(problem, around, np.full(samples, 1 / samples))


def expected_gradients(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    *,
    samples: int = 200,
    rng: int | np.random.Generator = 0,
) -> Any:
    """Return integrated gradients averaged over random baselines and places on the lines.

    Expected gradients (Erion et al., Nature Machine Intelligence 2021). With a single baseline,
    they are integrated gradients at random places.

    Args:
        im: The model.
        x: A sample, as for `Attribution`.
        baseline: A baseline, or several `(baselines, *input shape)`, such as training samples.
        target: What is explained, as for `Attribution`.
        samples: Number of gradients.
        rng: Seed or generator of the choices.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    random = as_generator(rng)
    several = len(im.input_operations) == 1 and np.ndim(baseline) == len(im.input_shape) + 1
    if not several:
        problem = Problem(im, x, baseline, target)
        places = (np.arange(samples) + random.random(samples)) / samples  # one in each interval
        return _times_difference(problem, _between(problem, places), np.full(samples, 1 / samples))
    chosen = np.asarray(baseline)[random.integers(len(baseline), size=samples)]
    total: np.ndarray | float = 0.0
    for one in chosen:
        problem = Problem(im, x, one, target)
        at = _between(problem, random.random(1))
        total = total + _times_difference(problem, at, np.full(1, 1 / samples))
    return np.asarray(total)


def _between(problem: Problem, ratios: np.ndarray) -> Features:
    """Return points on the line from the baseline (0) to the sample (1)."""
    return {
        name: problem.baseline[name]
        + ratios.reshape(-1, *[1] * value.ndim) * (value - problem.baseline[name])
        for name, value in problem.x.items()
    }


def _times_difference(problem: Problem, features: Features, weights: np.ndarray) -> np.ndarray:
    """Return the weighted sum of the gradients at some features, times x − baseline."""
    gradients = problem.gradients(features)
    return problem.by_input(
        {
            name: np.tensordot(weights, gradients[name], axes=1)
            * (value.astype(np.float64) - problem.baseline[name])
            for name, value in problem.x.items()
        }
    )
