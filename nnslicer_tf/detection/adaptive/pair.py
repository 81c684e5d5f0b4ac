"""`Pair`: the target of an attacker, a model and the detector that guards it.

A detector is one of this package, an outlier estimator of scikit-learn fitted on the inputs as
vectors, or any object with `decision_function(x)`, or with `score(x)` and `threshold_`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import OutlierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from nnslicer_tf._numerics import runner_up_margin
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

Excess = Callable[[np.ndarray], np.ndarray]
"""Inputs (N, *input_shape) → score minus threshold (N,): above 0 an input is flagged."""


class Pair:
    """A model and a detector; the attacker wants the model wrong and the detector silent.

    Args:
        im: The model.
        excess: The detector's score minus its threshold; None: no detector.
        lowered: How far to lower the threshold, as a safety margin for the attacker.
    """

    def __init__(self, im: InstrumentedModel, excess: Excess | None, lowered: float = 0.0) -> None:
        self.im, self._excess, self._lowered = im, excess, lowered

    def margins(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the true logit minus the largest other, (N,) float64: below 0 means wrong."""
        return -runner_up_margin(self.im.classes.scores(self.im.logits(x)), y)

    def excess(self, x: np.ndarray) -> np.ndarray:
        """Return score minus threshold, (N,) float64: above 0 is flagged; -1 without a detector."""
        if self._excess is None:
            return np.full(len(x), -1.0)
        return self._excess(x) + self._lowered

    def succeeds(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return for which inputs the model is wrong and the detector silent, (N,) bool."""
        evaded = self.margins(x, y) < 0
        rows = np.flatnonzero(evaded)
        if len(rows):
            evaded[rows] = self.excess(x[rows]) <= 0
        return evaded


def excess_of(detector: Any) -> Excess:
    """Return a detector's score minus its threshold, as a function of inputs.

    Raises:
        InvalidArgumentError: if it is not a detector, or has no threshold.
        NotFittedError: if it is not fitted.
    """
    if isinstance(detector, Detector):
        if not hasattr(detector, "threshold_"):
            raise NotFittedError(f"This {type(detector).__name__} is not fitted: call fit first.")
        return detector.decision_function
    if isinstance(detector, OutlierMixin):
        check_is_fitted(detector)
        return lambda x: -_scores(detector.decision_function(x.reshape(len(x), -1)), len(x))
    if callable(getattr(detector, "decision_function", None)):
        return lambda x: _scores(detector.decision_function(x), len(x))
    if callable(getattr(detector, "score", None)):
        threshold = getattr(detector, "threshold_", None)
        if threshold is None:
            raise InvalidArgumentError(
                f"{type(detector).__name__} has no threshold_: without one it flags nothing, and "
                "there is nothing to evade. Set it from scores of normal inputs "
                "(detection.calibration.threshold_at)."
            )
        return lambda x: _scores(detector.score(x), len(x)) - float(threshold)
    raise InvalidArgumentError(
        "A detector has decision_function(x), above 0 for flagged inputs, or score(x) and "
        f"threshold_. Received: {type(detector).__name__}"
    )


def _scores(values: Any, count: int) -> np.ndarray:
    """Return a detector's scores as (N,) float64, checked."""
    scores = np.asarray(values, np.float64)
    if scores.shape != (count,) or np.isnan(scores).any():
        raise InvalidArgumentError(
            f"A detector must give one number for each of {count} inputs. It gave "
            f"shape {scores.shape}{', with NaN' * bool(np.isnan(scores).any())}."
        )
    return scores
