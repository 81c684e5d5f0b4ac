"""How suspicious a feature vector is, given the class that the model predicts for it.

Three ways, learned from normal inputs alone, whose label is the model's own prediction
p = M(ξ). Each is fitted arrays and a function of them, so that it is saved without pickle.

Adding one: subclass `Score`, write `fit` and `__call__`, and list the fitted arrays in
`names`.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

__all__ = ["ClassDistance", "RidgeMargin", "Score", "TreeDisagreement", "runner_up_margin"]

# Samples whose distances are computed together.
_ROWS = 1024


class Score(ABC):
    """A fitted score; the arrays in `names` are its whole state."""

    names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> "Score":
        """Learn from normal inputs: vectors (N, features) float32, predicted (N,) int64."""

    @abstractmethod
    def __call__(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return (N,) float64, the higher the more suspicious."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays by name."""
        return {name: getattr(self, name) for name in self.names}

    def restore(self, arrays: dict[str, np.ndarray]) -> "Score":
        """Take the arrays of a fitted score."""
        for name in self.names:
            setattr(self, name, arrays[name])
        return self


class TreeDisagreement(Score):
    """1 where a decision tree F says another class than the model, else 0.

    The rule of NNSlicer, section 6.1: flag ξ if F(slice) ≠ M(ξ).

    Args:
        seed: breaks ties between equally good splits.
    """

    names = ("feature", "cut", "left", "right", "label")

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> "TreeDisagreement":
        """Learn the tree; see `Score.fit`."""
        from sklearn.tree import DecisionTreeClassifier

        fitted = DecisionTreeClassifier(random_state=self.seed).fit(vectors, predicted)
        tree = fitted.tree_
        self.feature, self.cut = tree.feature.copy(), tree.threshold.copy()
        self.left, self.right = tree.children_left.copy(), tree.children_right.copy()
        self.label = fitted.classes_[tree.value[:, 0].argmax(axis=1)]
        return self

    def classify(self, vectors: np.ndarray) -> np.ndarray:
        """Return the tree's classes (N,)."""
        rows = np.arange(len(vectors))
        node = np.zeros(len(vectors), np.int64)
        while True:
            inner = self.left[node] >= 0
            if not inner.any():
                return self.label[node]
            column = np.where(inner, self.feature[node], 0)
            below = vectors[rows, column] <= self.cut[node]
            node = np.where(inner, np.where(below, self.left[node], self.right[node]), node)

    def __call__(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return 1.0 or 0.0; see `Score`."""
        return (self.classify(vectors) != predicted).astype(np.float64)


class RidgeMargin(Score):
    """max over c ≠ p of z_c - z_p, for a ridge regression z on the classes (-1, +1).

    Above 0 the classifier disagrees with the model; a threshold below 0 rejects inputs on
    which it agrees without conviction too.

    Args:
        alpha: the penalty of the regression.
    """

    names = ("weights", "bias")

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> "RidgeMargin":
        """Learn the regression; see `Score.fit`."""
        from sklearn.linear_model import Ridge

        targets = np.where(np.arange(classes) == predicted[:, None], 1.0, -1.0)
        fitted = Ridge(alpha=self.alpha).fit(vectors, targets.astype(vectors.dtype))
        self.weights, self.bias = fitted.coef_.T.astype(np.float64), fitted.intercept_
        return self

    def __call__(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the margins; see `Score`."""
        return runner_up_margin(vectors @ self.weights + self.bias, predicted)


class ClassDistance(Score):
    """Squared Mahalanobis distance to the mean of the predicted class.

    One covariance for all classes, shrunk by Ledoit and Wolf's formula. Cost: cubic in
    the number of features.
    """

    names = ("means", "whitening")

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> "ClassDistance":
        """Learn means and covariance; see `Score.fit`."""
        from sklearn.covariance import ledoit_wolf

        self.means = np.stack(
            [vectors[predicted == c].mean(axis=0, dtype=np.float64) for c in range(classes)]
        )
        centred = vectors - self.means[predicted]
        covariance, _ = ledoit_wolf(centred, assume_centered=True)
        # A synapse that is constant within all classes must not divide by zero.
        floor = 1e-9 * max(np.trace(covariance) / len(covariance), 1e-9)
        covariance[np.diag_indices_from(covariance)] += floor
        self.whitening = np.linalg.inv(np.linalg.cholesky(covariance)).T
        return self

    def __call__(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the distances; see `Score`."""
        parts = []
        for first in range(0, len(vectors), _ROWS):
            rows = slice(first, first + _ROWS)
            white = (vectors[rows] - self.means[predicted[rows]]) @ self.whitening
            parts.append((white**2).sum(axis=1))
        return np.concatenate(parts)


def runner_up_margin(scores: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return max over c ≠ p of scores[c] - scores[p], (N,) float64."""
    scores = np.array(scores, np.float64)
    rows = np.arange(len(scores))
    own = scores[rows, predicted]
    scores[rows, predicted] = -np.inf
    return scores.max(axis=1) - own
