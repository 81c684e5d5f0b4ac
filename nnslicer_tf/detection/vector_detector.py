"""A detector by any feature vector of an input, judged as `SliceDetector` judges slices."""

from abc import abstractmethod

import numpy as np

from nnslicer_tf._names import check_name
from nnslicer_tf.detection._detector import Detector
from nnslicer_tf.detection._scores import RidgeMargin, Score, TreeDisagreement
from nnslicer_tf.errors import InvalidArgumentError

__all__ = ["PRESETS", "VectorDetector"]

PRESETS = ("paper", "margin")


class VectorDetector(Detector):
    """Base class; a subclass writes `_vectors` and, where columns are drawn, `_width`.

    Its constructor takes `im`, `preset`, `max_features`, `alpha` and what `Detector` takes.
    """

    @property
    def fixed_threshold(self) -> float | None:
        """Disagreement is 0 or 1; the margin has no threshold of its own."""
        return 0.5 if self.preset == "paper" else None

    @abstractmethod
    def _vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return those columns of the feature vectors, (N, columns) float32."""

    @abstractmethod
    def _width(self) -> int:
        """Return the length of the whole feature vector."""

    def _learn(self, x: np.ndarray, rng: np.random.Generator) -> None:
        self._score = self._new_score()
        width = self._width()
        self._columns = np.arange(width)
        if width > self.max_features:
            self._columns = np.sort(rng.choice(width, self.max_features, replace=False))
        logits = self.im.logits(x)
        vectors = self._vectors(x, self._columns)
        self._score.fit(vectors, logits.argmax(axis=1), logits.shape[1])

    def _suspicion(self, x: np.ndarray) -> np.ndarray:
        return self._score(self._vectors(x, self._columns), self.im.logits(x).argmax(axis=1))

    def _state(self) -> dict[str, np.ndarray]:
        return {"columns": self._columns, **self._score.arrays()}

    def _restore(self, state: dict[str, np.ndarray]) -> None:
        self._columns = state["columns"]
        self._score = self._new_score().restore(state)

    def _check_parameters(self) -> None:
        check_name("preset", self.preset, PRESETS)
        if not isinstance(self.max_features, (int, np.integer)) or self.max_features < 1:
            raise InvalidArgumentError(
                f"max_features must be a positive int. Received: {self.max_features!r}"
            )
        if not self.alpha > 0:
            raise InvalidArgumentError(f"alpha must be above 0. Received: {self.alpha!r}")

    def _new_score(self) -> Score:
        return TreeDisagreement() if self.preset == "paper" else RidgeMargin(self.alpha)
