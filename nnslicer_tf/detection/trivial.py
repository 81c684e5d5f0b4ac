"""What any detector must beat: flagging everything, and the model's own logit margin."""

import numpy as np

from nnslicer_tf.detection._detector import Detector
from nnslicer_tf.detection._scores import runner_up_margin
from nnslicer_tf.instrument import InstrumentedModel

__all__ = ["FlagEverything", "LogitMargin"]


class _Trivial(Detector):
    """Base class: learns nothing but the threshold."""

    def __init__(
        self,
        im: InstrumentedModel,
        *,
        false_positive_rate: float = 0.05,
        held_out: float = 0.25,
        rng: int | np.random.Generator = 0,
    ) -> None:
        self.im = im
        self.false_positive_rate = false_positive_rate
        self.held_out = held_out
        self.rng = rng

    def _learn(self, x: np.ndarray, rng: np.random.Generator) -> None:
        """Learn nothing."""


class FlagEverything(_Trivial):
    """Flags every input: precision 0.5, recall 1 and F1 2/3 on equally many of both.

    Args:
        im: the watched model.
        false_positive_rate: not used, it is 1.
        held_out: not used; all detectors have it.
        rng: not used.
    """

    fixed_threshold = 0.5

    def _suspicion(self, x: np.ndarray) -> np.ndarray:
        return np.ones(len(x))


class LogitMargin(_Trivial):
    """Flags inputs whose largest logit is little above the second: the model is unsure.

    Args:
        im: the watched model.
        false_positive_rate: share of normal inputs that may be flagged.
        held_out: share of the normal inputs that sets the threshold; the others only
            serve to make it the same share as of other detectors.
        rng: draws the held-out inputs.
    """

    def _suspicion(self, x: np.ndarray) -> np.ndarray:
        logits = self.im.logits(x)
        return runner_up_margin(logits, logits.argmax(axis=1))
