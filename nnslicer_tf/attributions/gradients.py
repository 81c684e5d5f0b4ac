"""Attributions by gradients, at the sample or along a line from a baseline to it."""

import numpy as np

from nnslicer_tf.exactline.gradients import approximate, integrated_gradients
from nnslicer_tf.instrument import InstrumentedModel

_SAMPLES = 50


def gradient_times_input(
    im: InstrumentedModel, x: np.ndarray, baseline: np.ndarray, target: int
) -> np.ndarray:
    """Return the logit's gradient times the difference between sample and baseline.

    With a baseline of zero, this is gradient × input (Shrikumar et al., 2016). Cost: one gradient.

    Args:
        im: The model.
        x: A sample, of the model's input shape.
        baseline: Values that represent absent features, of the same shape.
        target: Index of the logit.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    gradient = im.gradients(np.asarray(x)[None], of=target)[im.input_operation][0]
    return gradient.astype(np.float64) * (np.asarray(x, np.float64) - baseline)


def exact_gradients(
    im: InstrumentedModel, x: np.ndarray, baseline: np.ndarray, target: int
) -> np.ndarray:
    """Return exact integrated gradients; see `exactline.integrated_gradients`.

    Arguments are those of `gradient_times_input`.

    Raises:
        UnsupportedLayerError: if the model is not piecewise linear.
    """
    return integrated_gradients(im, x, baseline, target)


def sampled_gradients(
    im: InstrumentedModel, x: np.ndarray, baseline: np.ndarray, target: int
) -> np.ndarray:
    """Return integrated gradients by the trapezoidal rule with 50 steps (51 gradients).

    Arguments are those of `gradient_times_input`.
    """
    return approximate(im, x, baseline, target, samples=_SAMPLES, rule="trapezoid")
