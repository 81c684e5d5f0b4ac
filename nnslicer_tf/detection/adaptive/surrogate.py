"""`Surrogate`: the model's margin and the detector's score, with gradients, for an attacker.

The gradient of a `differentiable` detector of this package comes from its tensors, that of any
other from differences of its true score in random directions. The true detector always decides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf.detection.adaptive.pair import Pair
from nnslicer_tf.detection.arrays import margin
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product

ops: Any = LazyModule("keras.ops")

_DIRECTIONS = 24
_ROWS = 128  # inputs whose gradients are computed at once


@dataclass(frozen=True, eq=False)
class Values:
    """A surrogate's values and gradients for a batch of inputs.

    Attributes:
        margin: (N,) the true logit minus the largest other: below 0 the model is wrong.
        margin_gradient: (N, *input_shape) its gradient.
        excess: (N,) score minus threshold: above 0 the input is flagged.
        excess_gradient: (N, *input_shape) its gradient.
    """

    margin: np.ndarray
    margin_gradient: np.ndarray
    excess: np.ndarray
    excess_gradient: np.ndarray

    def rows(self, index: np.ndarray) -> "Values":
        """Return the values of some of the inputs."""
        return Values(**{name: array[index] for name, array in vars(self).items()})


class Surrogate:
    """A pair with gradients.

    Args:
        im: The model.
        detector: A differentiable detector; None: the model alone.
        lowered: See `Pair`.
    """

    #: Whether scores are an approximation of the detector's own.
    approximate = True

    def __init__(
        self, im: InstrumentedModel, detector: Detector | None, lowered: float = 0.0
    ) -> None:
        self._im, self._detector, self._lowered = im, detector, lowered
        self._compiled = compiled_function(self._values)
        self._inner = compiled_function(self._representation)
        self._toward = compiled_function(self._toward_gradient)

    def __call__(self, x: np.ndarray, y: np.ndarray, steepness: float, radius: float) -> Values:
        """Return margins and scores with their gradients.

        Args:
            x: (N, *input_shape) float32.
            y: (N,) true classes.
            steepness: Steepness of the smoothed sign function of slices.
            radius: Size of the coming steps, root mean square over elements.
        """
        steep = ops.convert_to_tensor(np.float32(steepness))
        parts = []
        for first in range(0, len(x), _ROWS):
            rows = slice(first, first + _ROWS)
            values = self._compiled(*map(ops.convert_to_tensor, (x[rows], y[rows])), steep)
            parts.append([np.nan_to_num(ops.convert_to_numpy(value)) for value in values])
        return Values(*map(np.concatenate, zip(*parts, strict=True)))

    def representation(self, x: np.ndarray) -> np.ndarray:
        """Return the inputs of the logits and the logits, (N, features) float32."""
        return ops.convert_to_numpy(self._inner(ops.convert_to_tensor(x)))

    def toward(self, x: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Return the gradient of the squared distance to a representation, shaped like `x`."""
        return ops.convert_to_numpy(self._toward(*map(ops.convert_to_tensor, (x, goal))))

    def _values(self, x: Any, y: Any, steepness: Any) -> tuple[Any, ...]:
        detector = self._detector

        def margins_of(x: Any) -> Any:
            return -margin(Evidence(self._im, x).logits, y)

        margins = margins_of(x)
        (of_margin,) = vector_jacobian_product(margins_of, [x], ops.ones_like(margins))
        if detector is None:
            return margins, of_margin, -ops.ones_like(margins), ops.zeros_like(of_margin)

        def excess(x: Any) -> Any:
            evidence = detector.evidence(x, steepness)
            return detector.anomaly_scores(evidence) - detector.threshold_ + self._lowered

        scores = excess(x)
        (of_excess,) = vector_jacobian_product(excess, [x], ops.ones_like(scores))
        return margins, of_margin, scores, of_excess

    def _representation(self, x: Any) -> Any:
        last = self._im.logit_operation
        names = [*self._im[last].inputs, last]
        values = self._im.compute(x, names)
        sizes = {name: int(np.prod(values[name].shape[1:])) for name in names}
        flat = [ops.reshape(values[name], (-1, size)) for name, size in sizes.items()]
        return ops.concatenate(flat, axis=1)

    def _toward_gradient(self, x: Any, goal: Any) -> Any:
        def distance(x: Any) -> Any:
            return ops.sum(ops.square(self._representation(x) - goal), axis=1)

        (gradient,) = vector_jacobian_product(distance, [x], ops.ones_like(goal[:, 0]))
        return gradient


class DifferenceSurrogate(Surrogate):
    """A pair whose detector's gradient is estimated from differences of its score.

    The score's gradient is the mean slope along random directions, and along the margin's
    gradient, over steps as large as the attack's: a score that is constant nearby may change at
    that distance. Cost: about fifty inputs scored for each gradient.

    Args:
        pair: The pair.
        bounds: Least and largest value of an input.
        rng: Draws the directions.
    """

    approximate = False

    def __init__(self, pair: Pair, bounds: tuple[float, float], rng: np.random.Generator) -> None:
        super().__init__(pair.im, None)
        self._pair, self._bounds, self._rng = pair, bounds, rng

    def __call__(self, x: np.ndarray, y: np.ndarray, steepness: float, radius: float) -> Values:
        """Return margins and scores with their gradients; see `Surrogate`."""
        model = super().__call__(x, y, steepness, radius)
        directions = self._rng.normal(size=(_DIRECTIONS, *x.shape)).astype(np.float32)
        gradient = model.margin_gradient
        size = np.sqrt((gradient**2).mean(axis=tuple(range(1, x.ndim)), keepdims=True))
        directions[0] = gradient / np.maximum(size, 1e-12)

        def excess(x: np.ndarray) -> np.ndarray:
            return self._pair.excess(np.clip(x, *self._bounds))

        slopes = difference_slopes(excess, x, directions, radius)
        shape = (*slopes.shape, *[1] * (x.ndim - 1))
        estimate = (slopes.reshape(shape) * directions).mean(axis=0).astype(np.float32)
        return Values(model.margin, gradient, self._pair.excess(x), estimate)


def difference_slopes(
    function: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    directions: np.ndarray,
    radius: float,
) -> np.ndarray:
    """Return (f(x + r·d) - f(x - r·d)) / 2r for directions d, (directions, N) float64.

    Args:
        function: Inputs (N, *input_shape) → (N,).
        x: (N, *input_shape).
        directions: (directions, N, *input_shape).
        radius: The step r.
    """
    differences = [function(x + radius * d) - function(x - radius * d) for d in directions]
    return np.stack(differences) / (2 * radius)
