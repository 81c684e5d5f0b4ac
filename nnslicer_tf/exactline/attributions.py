"""Exact integrated gradients.

Integrated gradients are the mean gradient on the line from a baseline to the input, times their
difference (Sundararajan, Taly and Yan, ICML 2017). The gradient is constant on each part of an
exact line (Sotoudeh and Thakur 2019, theorem 4).
"""

from typing import Any

import numpy as np

from nnslicer_tf.attributions import TargetLike
from nnslicer_tf.attributions.problem import Problem
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.exactline.gradients import Attributor
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.model import ModelLike


def integrated_gradients(
    im: ModelLike, x: np.ndarray, baseline: np.ndarray, target: int, *, max_parts: int | None = None
) -> np.ndarray:
    """Return the exact integrated gradients of a logit, `input shape` float64.

    They add up to the logit at x minus that at the baseline. For many calls on one model, make
    an `Attributor` and reuse it.

    Args:
        im: A piecewise-linear model, instrumented or Keras. A final softmax is ignored.
        x: The input, of the model's input shape.
        baseline: Start of the line, of the same shape.
        target: Index of the logit.
        max_parts: Stop with an error if there are more parts.

    Raises:
        InvalidArgumentError: if there is no such logit.
        UnsupportedLayerError, InputShapeError, NonFiniteActivationError: as `exact_line`.
        TooManyRegionsError: if there are more than `max_parts`.
    """
    return Attributor(instrumented(im)).exact(x, baseline, target, max_parts)


def exact_gradients(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return exact integrated gradients; see `integrated_gradients` and `attributions.Attribution`.

    The model must be piecewise linear with one input, not of tokens; the target an output neuron.
    """
    problem = Problem(im, x, baseline, target)
    chosen = problem.target
    use = "use sampled ones, attributions.sampled_gradients."
    if set(problem.x) != set(im.input_operations) or len(problem.x) > 1:
        raise UnsupportedLayerError(
            f"Exact integrated gradients need a model with one input of real numbers; {use}"
        )
    if chosen.operation != im.logit_operation or len(chosen.neurons) > 1:
        raise UnsupportedLayerError(
            f"Exact integrated gradients explain one neuron of the first output; {use}"
        )
    (x,), (baseline,) = problem.x.values(), problem.baseline.values()
    return chosen.sign * integrated_gradients(im, x, baseline, chosen.neurons[0])
