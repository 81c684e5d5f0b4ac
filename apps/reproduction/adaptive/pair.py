"""`Pair`: the target of an adaptive attack, a model and its detector, with gradients.

The gradient of a detector with a `surrogate` comes from it, that of any other from differences of
its score in random directions. The true detector always decides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import OutlierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from nnslicer_tf._environment import LazyModule
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.detection.images import margin
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product
from reproduction.adaptive.surrogate import TensorEvidence, is_differentiable, smooth_scores

ops: Any = LazyModule("keras.ops")

_DIRECTIONS = 24
_ROWS = 128  # inputs whose gradients are computed at once


@dataclass(frozen=True, eq=False)
class Values:
    """A pair's values for a batch of inputs, (N,), and their gradients, (N, *input_shape)."""

    margin: np.ndarray  # the true logit minus the largest other; below 0 the model is wrong
    margin_gradient: np.ndarray
    excess: np.ndarray  # score minus threshold; above 0 the input is flagged
    excess_gradient: np.ndarray

    def rows(self, index: np.ndarray) -> "Values":
        """Return the values of some of the inputs."""
        return Values(**{name: array[index] for name, array in vars(self).items()})


class Pair:
    """A model and a detector; an attack succeeds if the model is wrong and the detector silent.

    If the detector has a surrogate, `values` approximate the true score. Raises
    InvalidArgumentError without a detector or threshold, NotFittedError if it is not fitted.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        detector: Any = None,  # as for `challenge`; None: the model alone
        lowered: float = 0.0,  # safety margin by which the threshold is lowered
        bounds: tuple[float, float] = (-np.inf, np.inf),  # of an input
        rng: np.random.Generator | None = None,  # draws the directions of differences
    ) -> None:
        self.im, self._detector, self._lowered = im, detector, lowered
        self._bounds, self._rng = bounds, rng
        self._excess = None if detector is None else _excess_of(detector)
        self.differentiable = isinstance(detector, Detector) and is_differentiable(detector)
        self._compiled = compiled_function(self._values)
        self._inner = compiled_function(self._representation)
        self._toward = compiled_function(self._toward_gradient)

    def margins(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the true logit minus the largest other, (N,) float64: below 0 is wrong."""
        return -margin(self.im.classes.scores(self.im.logits(x)), y)

    def excess(self, x: np.ndarray) -> np.ndarray:
        """Return score minus threshold, (N,) float64: above 0 is flagged; -1 without a detector."""
        if self._excess is None:
            return np.full(len(x), -1.0)
        return self._excess(x) + self._lowered

    def succeeds(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return where the model is wrong and the detector silent, (N,) bool."""
        evaded = self.margins(x, y) < 0
        rows = np.flatnonzero(evaded)
        if len(rows):
            evaded[rows] = self.excess(x[rows]) <= 0
        return evaded

    def values(self, x: np.ndarray, y: np.ndarray, steepness: float, radius: float) -> Values:
        """Return margins and scores with their gradients.

        The gradient of a score without a derivative is its mean slope along random directions and
        the margin's gradient, over steps of the attack's size, as scores may be constant nearby; it
        costs about fifty scored inputs. `steepness` is that of the slices' smoothed sign function,
        `radius` the root mean square of the coming step.
        """
        steep = ops.convert_to_tensor(np.float32(steepness))
        parts = []
        for first in range(0, len(x), _ROWS):
            rows = slice(first, first + _ROWS)
            values = self._compiled(*map(ops.convert_to_tensor, (x[rows], y[rows])), steep)
            parts.append([np.nan_to_num(ops.convert_to_numpy(value)) for value in values])
        values = Values(*map(np.concatenate, zip(*parts, strict=True)))
        if self._excess is None or self.differentiable:
            return values
        assert self._rng is not None  # for all detectors whose gradient is estimated
        directions = self._rng.normal(size=(_DIRECTIONS, *x.shape)).astype(np.float32)
        gradient = values.margin_gradient
        size = np.sqrt((gradient**2).mean(axis=tuple(range(1, x.ndim)), keepdims=True))
        directions[0] = gradient / np.maximum(size, 1e-12)

        def excess(x: np.ndarray) -> np.ndarray:
            return self.excess(np.clip(x, *self._bounds))

        estimate = slope_sum(excess, x, directions, radius) / _DIRECTIONS
        return Values(values.margin, gradient, self.excess(x), estimate.astype(np.float32))

    def representation(self, x: np.ndarray) -> np.ndarray:
        """Return the inputs of the logits and the logits, (N, features) float32."""
        return ops.convert_to_numpy(self._inner(ops.convert_to_tensor(x)))

    def toward(self, x: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Return the gradient of the squared distance to a representation, shaped like `x`."""
        return ops.convert_to_numpy(self._toward(*map(ops.convert_to_tensor, (x, goal))))

    def _values(self, x: Any, y: Any, steepness: Any) -> tuple[Any, ...]:
        def margins_of(x: Any) -> Any:
            return -margin(TensorEvidence(self.im, x).logits, y)

        margins = margins_of(x)
        (of_margin,) = vector_jacobian_product(margins_of, [x], ops.ones_like(margins))
        if not self.differentiable:
            return margins, of_margin, -ops.ones_like(margins), ops.zeros_like(of_margin)

        def excess(x: Any) -> Any:
            scores = smooth_scores(self._detector, x, steepness)
            return scores - self._detector.threshold_ + self._lowered

        scores = excess(x)
        (of_excess,) = vector_jacobian_product(excess, [x], ops.ones_like(scores))
        return margins, of_margin, scores, of_excess

    def _representation(self, x: Any) -> Any:
        last = self.im.logit_operation
        names = [*self.im[last].inputs, last]
        values = self.im.compute(x, names)
        sizes = {name: int(np.prod(values[name].shape[1:])) for name in names}
        flat = [ops.reshape(values[name], (-1, size)) for name, size in sizes.items()]
        return ops.concatenate(flat, axis=1)

    def _toward_gradient(self, x: Any, goal: Any) -> Any:
        def distance(x: Any) -> Any:
            return ops.sum(ops.square(self._representation(x) - goal), axis=1)

        (gradient,) = vector_jacobian_product(distance, [x], ops.ones_like(goal[:, 0]))
        return gradient


def slope_sum(
    function: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    directions: np.ndarray,
    radius: float,
) -> np.ndarray:
    """Return Σ d · (f(x + r·d) - f(x - r·d)) / 2r over `(directions, N, *input_shape)`, float64."""
    differences = [function(x + radius * d) - function(x - radius * d) for d in directions]
    slopes = np.stack(differences) / (2 * radius)
    return (slopes.reshape(*slopes.shape, *[1] * (x.ndim - 1)) * directions).sum(axis=0)


def _excess_of(detector: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return score minus threshold as a function of inputs; see `challenge`."""

    def checked(scores: Any, x: np.ndarray) -> np.ndarray:
        scores = np.asarray(scores, np.float64)
        if scores.shape != (len(x),) or np.isnan(scores).any():
            raise InvalidArgumentError(
                f"A detector must return one number for each of {len(x)} inputs. Received: shape "
                f"{scores.shape}{', with NaN' * bool(np.isnan(scores).any())}."
            )
        return scores

    if isinstance(detector, Detector):
        if not hasattr(detector, "threshold_"):
            raise NotFittedError(f"This {type(detector).__name__} is not fitted: call fit first.")
        return detector.decision_function
    if isinstance(detector, OutlierMixin):
        check_is_fitted(detector)
        return lambda x: -checked(detector.decision_function(x.reshape(len(x), -1)), x)
    if callable(getattr(detector, "decision_function", None)):
        return lambda x: checked(detector.decision_function(x), x)
    raise InvalidArgumentError(
        "A detector must have decision_function(x), above 0 for flagged inputs. Received: "
        f"{type(detector).__name__}"
    )
