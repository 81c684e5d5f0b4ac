"""Detectors that others are compared with.

- `FeatureMap`: the naive baseline of NNSlicer, section 6.1: the same classifier as for slices, on
  the outputs of the convolutions. Cost: a forward pass.
- `EffectivePath`: effective paths (Qiu et al., CVPR 2019). Cost: that of
  `baselines.effective_paths`, for each input.
- `OutlierDetector`: isolation forests, one-class support vector machines, local outlier factors
  and Gaussian envelopes of scikit-learn, which know nothing about networks, on a model's
  activations. Cost: that of the estimator, and a forward pass.
- `LogitMargin` and `FlagEverything`: trivial; any other detector must beat them.

Memory: one float32 per feature, or sampled synapse, and input.
"""

import os
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone

from nnslicer_tf._checks import check_count, check_name
from nnslicer_tf._environment import track
from nnslicer_tf.baselines.effective_path import check_share, effective_paths
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.detection.evidence import Evidence, convolutions
from nnslicer_tf.detection.scorers import RidgeMargin, Scorer, TreeDisagreement
from nnslicer_tf.detection.votes import Features, Vote, VotingDetector
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

# Samples whose paths are held in memory at once.
_SAMPLES = 512


@dataclass(eq=False, repr=False)
class VectorDetector(VotingDetector):
    """Base class of detectors on a feature vector; a subclass implements `vectors` and `width`.

    Args:
        im: The watched model.
        preset: `"paper"` (decision tree, F ≠ M) or `"margin"` (ridge regression with a
            threshold), as in `SliceDetector`.
        max_features: Number of elements drawn at random from longer vectors.
    """

    im: InstrumentedModel
    preset: str = "paper"
    _: KW_ONLY
    max_features: int = 16_384

    @abstractmethod
    def vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the given columns of the inputs' feature vectors, (N, columns) float32."""

    @abstractmethod
    def width(self) -> int:
        """Return the length of the whole feature vector."""

    def votes(self) -> list[Vote]:
        """Return the single vote; see `VotingDetector.votes`."""
        features = Features(
            lambda evidence, columns: self.vectors(evidence.x, columns),
            [self.width()],
            self.max_features,
            differentiable=False,
        )
        scorer: Scorer = RidgeMargin(self.alpha) if self.preset == "margin" else TreeDisagreement()
        return [Vote(self.preset, features, scorer)]

    def check_parameters(self) -> None:
        """Reject an unknown preset, and numbers out of range."""
        super().check_parameters()
        check_name("preset", self.preset, ("paper", "margin"))
        check_count("max_features", self.max_features)


@dataclass(eq=False, repr=False)
class FeatureMap(VectorDetector):
    """Flags inputs whose feature maps do not fit the model's prediction.

    The arguments are those of `VectorDetector`.
    """

    def width(self) -> int:
        """Return the number of values in all feature maps."""
        return sum(self.im[name].size for name in self._layers())

    def vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the values; see `VectorDetector.vectors`."""
        parts = []
        for maps in self.im.capture_batches(x, of=self._layers()):
            flat = [values.reshape(len(values), -1) for values in maps.values()]
            parts.append(np.concatenate(flat, axis=1)[:, columns])
        return np.concatenate(parts)

    def _layers(self) -> list[str]:
        """Return the operations whose values are the feature maps: the weighted sums."""
        kernels = convolutions(self.im)
        return [o.name for o in self.im.operations if getattr(o.params, "name", None) in kernels]


@dataclass(eq=False, repr=False, kw_only=True)
class EffectivePath(VectorDetector):
    """Flags inputs whose effective path does not fit the model's prediction.

    Args:
        theta: The share θ of a neuron's value that its contributors must reach.
        progress: Show a progress bar.

    The other arguments are those of `VectorDetector`.
    """

    theta: float = 0.5
    progress: bool = True

    def width(self) -> int:
        """Return the number of synapses."""
        return sum(kernel.size for kernel in self.im.kernels.values())

    def vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return which synapses are on the paths; see `VectorDetector.vectors`."""
        parts = []
        for i in track(range(0, len(x), _SAMPLES), "Effective paths", progress=self.progress):
            paths = effective_paths(self.im, x[i : i + _SAMPLES], self.theta, progress=False)
            parts.append(paths[:, columns].toarray())
        return np.concatenate(parts).astype(np.float32)

    def check_parameters(self) -> None:
        """Reject a θ out of range, and what `VectorDetector` rejects."""
        super().check_parameters()
        check_share(self.theta)


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


@dataclass(eq=False, repr=False)
class FlagEverything(Detector):
    """Flags every input: precision 0.5, recall 1 and F1 2/3 on balanced data.

    Args:
        im: The watched model.

    It takes the arguments of `Detector`, but uses none of them.
    """

    im: InstrumentedModel

    @property
    def fixed_threshold(self) -> float | None:
        """A threshold that all scores exceed."""
        return 0.5

    def learn(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Learn nothing."""

    def anomaly_scores(self, evidence: Evidence) -> np.ndarray:
        """Return ones; see `Detector.anomaly_scores`."""
        return np.ones(len(evidence))


@dataclass(eq=False, repr=False)
class LogitMargin(Detector):
    """Flags inputs whose largest logit is barely above the second: the model is unsure.

    Nothing is learned from the inputs that are not held out; they exist only so that the
    threshold is set from the same share of inputs as in other detectors.

    Args:
        im: The watched model.
    """

    im: InstrumentedModel

    def learn(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Learn nothing."""

    def anomaly_scores(self, evidence: Evidence) -> Any:
        """Return the margins of the predictions; see `Detector.anomaly_scores`."""
        return evidence.margins

    @property
    def differentiable(self) -> bool:
        """Whether the score has a gradient: True; see `Detector.differentiable`."""
        return True
