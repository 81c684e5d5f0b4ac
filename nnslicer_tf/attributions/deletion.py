"""Deletion curves (Petsiuk et al., BMVC 2018), which measure the quality of attributions.

Features are replaced by a baseline, those with the largest attribution first. The sooner the
output falls, the better the attribution. Cost: a forward pass for each point of the curve.
"""

from dataclasses import dataclass

import numpy as np

from nnslicer_tf._checks import check_count
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline._points import check_points, check_target
from nnslicer_tf.instrument import InstrumentedModel


@dataclass(frozen=True, eq=False)
class DeletionCurve:
    """Probability of a class as features are removed.

    Attributes:
        shares: Share of the features removed, ascending from 0 to 1.
        probabilities: Probability of the class at each share.
    """

    shares: np.ndarray
    probabilities: np.ndarray

    @property
    def area(self) -> float:
        """Area under the curve, from 0 to 1; lower is better."""
        return float(np.trapezoid(self.probabilities, self.shares))


def deletion_curve(
    im: InstrumentedModel,
    x: np.ndarray,
    baseline: np.ndarray,
    target: int,
    values: np.ndarray,
    steps: int = 40,
) -> DeletionCurve:
    """Return the softmax of a logit as a sample's features are removed.

    A feature is a pixel with all its channels, or an entry of a sample with one axis.

    Args:
        im: The model.
        x: A sample, of the model's input shape.
        baseline: Values that replace removed features, of the same shape.
        target: Index of the logit.
        values: Attributions, of the same shape; ties are broken at random, with a fixed seed.
        steps: Number of points after the first, at least 1.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    check_target(im, target)
    check_count("steps", steps)
    x = check_points(x, "x", im.input_shape).astype(np.float32)
    of_features = _checked(values, x.shape)
    if x.ndim > 1:
        of_features = of_features.sum(axis=-1)
    ranks = _ranks(of_features.ravel()).reshape(of_features.shape)
    shares = np.linspace(0, 1, steps + 1)
    counts = np.rint(shares * ranks.size).astype(int)
    gone = ranks[None] < counts.reshape(-1, *[1] * ranks.ndim)
    wide = gone[..., None] if x.ndim > 1 else gone
    inputs = np.where(wide, np.asarray(baseline, np.float32), x)
    logits = im.logits(inputs).reshape(len(inputs), -1).astype(np.float64)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return DeletionCurve(shares, odds[:, target] / odds.sum(axis=1))


def _checked(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return attributions as float64, after checking their shape and that they can be ranked."""
    values = np.asarray(values, np.float64)
    if values.shape != shape or np.isnan(values).any():
        what = f"shape {values.shape}" if values.shape != shape else "NaN in places"
        raise InvalidArgumentError(
            f"values must have one number for each of the sample, shape {shape}. Received: {what}"
        )
    return values


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return each value's rank in descending order."""
    shuffled = np.random.default_rng(0).permutation(len(values))
    order = shuffled[np.argsort(-values[shuffled], kind="stable")]
    ranks = np.empty(len(values), int)
    ranks[order] = np.arange(len(values))
    return ranks
