"""`OutlierDetector`: an outlier estimator of scikit-learn on a model's activations.

A baseline: isolation forests, one-class support vector machines, local outlier factors and
Gaussian envelopes know nothing about networks. Cost: that of the estimator, and a forward pass.
"""

import os
from dataclasses import dataclass

import numpy as np
from sklearn.base import BaseEstimator, clone

from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel


@dataclass(eq=False, repr=False)
class OutlierDetector(Detector):
    """Flags inputs whose logits, or other activations, an outlier estimator finds unusual.

    The estimator has no gradient: `challenge` attacks it with differences of its scores.

    Args:
        im: The watched model.
        estimator: A scikit-learn estimator with `fit` and `score_samples`, such as
            `IsolationForest()` or `LocalOutlierFactor(novelty=True)`; a copy is fitted.
        of: Name of the operation whose values are used; None: the logits.

    The other arguments are those of `Detector`.

    Attributes:
        estimator_: The fitted estimator.
    """

    im: InstrumentedModel
    estimator: BaseEstimator
    of: str | None = None

    def check_parameters(self) -> None:
        """Reject an operation that the model does not have, and unsuitable estimators."""
        _ = self.im[self.of or self.im.logit_operation]
        if not hasattr(self.estimator, "fit") or not hasattr(self.estimator, "score_samples"):
            raise InvalidArgumentError(
                "An outlier estimator has fit and score_samples (LocalOutlierFactor with "
                f"novelty=True). Received: {self.estimator!r}"
            )

    def learn(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Fit a copy of the estimator; see `Detector.learn`."""
        self.estimator_ = clone(self.estimator).fit(self._values(evidence))

    def anomaly_scores(self, evidence: Evidence) -> np.ndarray:
        """Return the estimator's scores, negated; see `Detector.anomaly_scores`."""
        return -self.estimator_.score_samples(self._values(evidence)).astype(np.float64)

    def save(self, path: str | os.PathLike) -> None:
        """Always raise an error: the estimator could only be saved with pickle.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            "An OutlierDetector cannot be saved: scikit-learn's estimators are written by pickle, "
            "which runs code when it is read. Fit it again."
        )

    def _values(self, evidence: Evidence) -> np.ndarray:
        if self.of is None:
            return evidence.logits[:, -1:] if self.im.classes.is_binary else evidence.logits
        values = self.im.capture(evidence.x, of=[self.of])[self.of]
        return values.reshape(len(values), -1)
