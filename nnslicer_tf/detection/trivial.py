"""Trivial detectors that any other must beat: flag everything, or use the logit margin."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.instrument import InstrumentedModel


@dataclass(eq=False, repr=False)
class _Trivial(Detector):
    """Base class of detectors that learn only the threshold."""

    im: InstrumentedModel

    def learn(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Learn nothing."""


@dataclass(eq=False, repr=False)
class FlagEverything(_Trivial):
    """Flags every input: precision 0.5, recall 1 and F1 2/3 on balanced data.

    Args:
        im: The watched model.

    It takes the arguments of `Detector`, but uses none of them.
    """

    @property
    def fixed_threshold(self) -> float | None:
        """A threshold that all scores exceed."""
        return 0.5

    def anomaly_scores(self, evidence: Evidence) -> np.ndarray:
        """Return ones; see `Detector.anomaly_scores`."""
        return np.ones(len(evidence))


@dataclass(eq=False, repr=False)
class LogitMargin(_Trivial):
    """Flags inputs whose largest logit is barely above the second: the model is unsure.

    Nothing is learned from the inputs that are not held out; they exist only so that the
    threshold is set from the same share of inputs as in other detectors.

    Args:
        im: The watched model.
    """

    def anomaly_scores(self, evidence: Evidence) -> np.ndarray:
        """Return the margins of the predictions; see `Detector.anomaly_scores`."""
        return evidence.margins

    @property
    def differentiable(self) -> bool:
        """Whether the score has a gradient: True; see `Detector.differentiable`."""
        return True

    def smooth_scores(self, evidence: Evidence) -> Any:
        """Return the margins as a tensor; see `Detector.smooth_scores`."""
        return evidence.margins
