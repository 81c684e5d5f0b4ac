"""Exact integrated gradients, and gradients along the line.

Integrated gradients are the mean gradient on the line from a baseline to the input, times their
difference (Sundararajan, Taly and Yan, ICML 2017). The gradient is constant on each part of an
exact line (Sotoudeh and Thakur 2019, theorem 4).

Everything is computed in float64. Exact gradients take one walk back along the line (see `trace`),
or, if a custom transformer has no method `pull`, about two forward passes for each part.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import check_target
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.attributions import TargetLike
from nnslicer_tf.attributions.problem import Problem
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.exactline.partition import LinearPartition, check_ratios
from nnslicer_tf.exactline.steps import Steps
from nnslicer_tf.exactline.trace import LineTrace
from nnslicer_tf.exactline.walk import LineWalker
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.graph import gradient_function
from nnslicer_tf.instrument.model import ModelLike


class Attributor:
    """Computes integrated gradients of a model, with its current weights.

    `batch_size` is the number of gradients to compute at a time.
    """

    def __init__(self, im: ModelLike, batch_size: int = 64) -> None:
        self._im = im = instrumented(im)
        self._batch_size = batch_size
        logits = im.logit_operation

        def chosen(values: dict[str, Any], target: Any) -> Any:
            flat = keras.ops.reshape(values[logits], (-1, im[logits].size))
            return keras.ops.sum(flat * keras.ops.one_hot(target, flat.shape[1], dtype="float64"))

        self._gradients = gradient_function(im.graph, chosen, [logits], [im.input_operation])

    @property
    def walker(self) -> LineWalker:
        """The walker that partitions the lines, with the model's current weights."""
        return self._im.prepared(LineWalker, lambda: LineWalker(self._im))

    def exact(
        self, x: np.ndarray, baseline: np.ndarray, target: int, max_parts: int | None = None
    ) -> np.ndarray:
        """Return the exact integrated gradients from one baseline; see `integrated_gradients`."""
        partition, trace = self._walked(x, baseline, target, max_parts)
        if trace is None:
            return self._part_by_part(partition, target).exact()
        mean = trace.mean_gradient(target).reshape(self._im.input_shape)
        return (partition.end - partition.start) * mean

    def path(self, x: np.ndarray, baseline: np.ndarray, target: int) -> "PathGradients":
        """Return the gradients along the line; arguments are as for `integrated_gradients`."""
        partition, trace = self._walked(x, baseline, target)
        if trace is None:
            return self._part_by_part(partition, target)
        return PathGradients(partition, target, trace.gradients(target))

    def gradients(self, x: np.ndarray, target: int) -> np.ndarray:
        """Return a logit's gradients at inputs `(n, *input shape)`, float64."""
        x, size = np.asarray(x, np.float64), self._batch_size
        batches = np.split(x, range(size, len(x), size))
        targets = (np.full(len(batch), target, np.int32) for batch in batches)
        return np.concatenate([g for (g,) in map(self._gradients, batches, targets)])

    def _walked(
        self, x: np.ndarray, baseline: np.ndarray, target: int, max_parts: int | None = None
    ) -> tuple[LinearPartition, LineTrace | None]:
        """Return the partition of the line, and its trace if all transformers can pull."""
        check_target(target, self._im[self._im.logit_operation].size)
        walker = self.walker
        im = self._im.named_by(x, baseline)
        x, baseline = im.points(x), im.points(baseline, "baseline")
        if walker.can_trace:
            return walker.traced(baseline, x, max_parts)
        return walker.line(baseline, x, max_parts), None

    def _part_by_part(self, partition: LinearPartition, target: int) -> "PathGradients":
        values = self.gradients(partition.at(partition.midpoints), target)
        values = np.append(values, values[-1:], axis=0).reshape(len(partition) + 1, -1)
        steps = Steps(np.array([0, len(values)]), partition.ratios, values)
        return PathGradients(partition, target, steps)


@dataclass(frozen=True, repr=False)
class PathGradients(ShownAsTable):
    """The gradients of one logit along a line."""

    partition: LinearPartition  # the line, from the baseline to the input
    target: int  # index of the logit
    steps: Steps  # the gradients as step functions of the ratio, by position of the input

    def __repr__(self) -> str:
        return f"PathGradients(logit {self.target} on {len(self.partition)} parts)"

    @cached_property
    def gradients(self) -> np.ndarray:
        """The gradient on each part, `(parts, *input shape)` float64."""
        return self.at(self.partition.midpoints)

    def at(self, ratios: np.ndarray) -> np.ndarray:
        """Return the gradients `(n, *input shape)` at `ratios` `(n,)`; at a bend, the later one."""
        places, index = np.unique(check_ratios(ratios), return_inverse=True)
        return self.steps.at(places)[index].reshape(-1, *self.partition.start.shape)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per part: from, to, and the L1 norm of its gradient."""
        ratios, flat = self.partition.ratios, self.gradients.reshape(len(self.gradients), -1)
        sizes = np.abs(flat).sum(axis=1)
        return pd.DataFrame({"from": ratios[:-1], "to": ratios[1:], "gradient, L1": sizes})

    def exact(self) -> np.ndarray:
        """Return the exact integrated gradients, `input shape`."""
        start, end = self.partition.start, self.partition.end
        return (end - start) * self.steps.integrals().reshape(start.shape)


def integrated_gradients(
    im: ModelLike, x: np.ndarray, baseline: np.ndarray, target: int, *, max_parts: int | None = None
) -> np.ndarray:
    """Return the exact integrated gradients of a logit, `input shape` float64.

    They add up to the logit at x minus that at the baseline. For many calls, reuse an `Attributor`.

    Args:
        im: A piecewise-linear model, instrumented or Keras. A final softmax is ignored.
        x: The input, of the model's input shape.
        baseline: Start of the line, of the same shape.
        target: Index of the logit.
        max_parts: Stop with an error if there are more parts.

    Raises InvalidArgumentError if there is no such logit; UnsupportedLayerError, InputShapeError
    or NonFiniteActivationError as for `exact_line`; TooManyRegionsError if there are more than
    `max_parts`.
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
