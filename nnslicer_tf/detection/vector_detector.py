"""`VectorDetector`: a detector on any feature vector, scored as `SliceDetector` scores slices."""

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass

import numpy as np

from nnslicer_tf._checks import check_count, check_name
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.detection.scorers import RidgeMargin, TreeDisagreement
from nnslicer_tf.detection.votes import DrawnColumns, Vote, VotingDetector
from nnslicer_tf.instrument import InstrumentedModel

_PRESETS = ("paper", "margin")


class _Columns(DrawnColumns):
    """The features of a `VectorDetector`."""

    differentiable = False

    def __init__(self, detector: "VectorDetector") -> None:
        super().__init__([detector.width()], detector.max_features)
        self._detector = detector

    def read(self, evidence: Evidence, columns: np.ndarray) -> np.ndarray:
        """Return the detector's vectors; see `DrawnColumns.read`."""
        return self._detector.vectors(evidence.x, columns)


@dataclass(eq=False, repr=False)
class VectorDetector(VotingDetector):
    """Base class; a subclass implements `vectors` and `width`.

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
        features = _Columns(self)
        scorer = TreeDisagreement() if self.preset == "paper" else RidgeMargin(self.alpha)
        return [Vote(self.preset, features, scorer)]

    def check_parameters(self) -> None:
        """Reject an unknown preset, and numbers out of range."""
        super().check_parameters()
        check_name("preset", self.preset, _PRESETS)
        check_count("max_features", self.max_features)
