"""Attributions by gradients: at the sample, around it, or along a line from a baseline to it.

Cost: one gradient for gradient × input, one per step or sample for the others. Grad-CAM's map has
the resolution of the last convolution, enlarged to the input's.
"""

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
from keras import ops

from nnslicer_tf._checks import as_generator
from nnslicer_tf.attributions.problem import Features, Problem
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.target import TargetLike, resolve_target

_SAMPLES = 50


def gradient_times_input(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return the score's gradient times the difference between sample and baseline.

    With a baseline of zero, this is gradient × input (Shrikumar et al., 2016).
    """
    problem = Problem(im, x, baseline, target)
    return _mean_gradient(problem, {n: v[None] for n, v in problem.x.items()})


def sampled_gradients(
    im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike, *, samples: int = _SAMPLES
) -> Any:
    """Return integrated gradients by the trapezoidal rule (Sundararajan et al., ICML 2017).

    They add up to the change of the score, up to the error of the rule, with `samples` steps from
    the baseline to the sample. Embeddings of tokens are interpolated.
    """
    problem = Problem(im, x, baseline, target)
    weights = np.full(samples + 1, 1 / samples)
    weights[[0, -1]] /= 2
    return _mean_gradient(problem, _between(problem, np.linspace(0, 1, samples + 1)), weights)


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

    SmoothGrad (Smilkov et al., 2017), in its form that multiplies by the input. The noise's
    standard deviation is the share `noise` of the range of the sample's values.
    """
    problem = Problem(im, x, baseline, target)
    random = as_generator(rng)
    around = {
        name: value + random.normal(0, noise * float(np.ptp(value)), (samples, *value.shape))
        for name, value in problem.x.items()
    }
    return _mean_gradient(problem, around)


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

    Expected gradients (Erion et al., Nature Machine Intelligence 2021). `baseline` may be several,
    `(baselines, *input shape)`, such as training samples; `samples` is the number of gradients.
    """
    random = as_generator(rng)
    if len(im.input_operations) > 1 or np.ndim(baseline) != len(im.input_shape) + 1:
        problem = Problem(im, x, baseline, target)
        places = (np.arange(samples) + random.random(samples)) / samples  # one in each interval
        return _mean_gradient(problem, _between(problem, places))
    chosen = np.asarray(baseline)[random.integers(len(baseline), size=samples)]
    total: np.ndarray | float = 0.0
    for one in chosen:
        problem = Problem(im, x, one, target)
        total = total + _mean_gradient(problem, _between(problem, random.random(1))) / samples
    return np.asarray(total)


def grad_cam(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return Grad-CAM (Selvaraju et al., ICCV 2017), non-negative and equal in all channels.

    The maps are the convolution's activation if it follows directly, else (after a batch
    normalisation) the convolution itself. The baseline is not used.

    Raises:
        UnsupportedLayerError: if the model has no convolution over images.
    """
    target = resolve_target(im, target)
    if len(im.input_operations) > 1 or len(im.input_shape) != 3:
        shapes = ", ".join(map(str, im.input_shapes.values()))
        raise UnsupportedLayerError(
            f"Grad-CAM needs a model of images with a convolution. '{im.model.name}' takes samples "
            f"of shape {shapes}."
        )
    before = im.graph.ancestors([target.operation])[:-1]
    sums = [o.name for o in before if o.kind == "weighted_sum" and len(o.shape) == 3]
    if not sums:
        raise UnsupportedLayerError(
            "Grad-CAM needs a model of images with a convolution before the target. "
            f"'{im.model.name}' has none."
        )
    following = [o for o in before if o.inputs == (sums[-1],)]
    is_activated = len(following) == 1 and following[0].kind in ("rectify", "elementwise")
    name = following[0].name if is_activated else sums[-1]

    weights = target.weights(im[target.operation].size)

    def score(values: Mapping[str, Any]) -> Any:
        flat = ops.reshape(values[target.operation], (-1, len(weights)))
        return ops.sum(flat * weights, axis=1)

    batch = np.asarray(x)[None]
    maps = im.capture(batch, of=[name])[name][0].astype(np.float64)
    compiled = im.prepared(("grad-cam", target), lambda: score)  # the same object each time
    gradient = im.gradients(batch, of=compiled, wrt=[name], needs=[target.operation])[name][0]
    coarse = np.maximum((maps * gradient.mean(axis=(0, 1))).sum(axis=-1), 0)
    height, width, channels = im.input_shape
    fine = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.repeat(fine[..., None], channels, axis=-1)


def _between(problem: Problem, ratios: np.ndarray) -> Features:
    """Return points on the line from the baseline (0) to the sample (1)."""
    return {
        name: problem.baseline[name]
        + ratios.reshape(-1, *[1] * value.ndim) * (value - problem.baseline[name])
        for name, value in problem.x.items()
    }


def _mean_gradient(problem: Problem, features: Features, weights: np.ndarray | None = None) -> Any:
    """Return the mean, or weighted sum, of the gradients at some features, times x − baseline."""
    count = len(next(iter(features.values())))
    weights = np.full(count, 1 / count) if weights is None else weights
    gradients = problem.gradients(features).items()
    return problem.attributions({k: np.tensordot(weights, v, axes=1) for k, v in gradients})
