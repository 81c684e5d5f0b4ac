"""Scorers: how anomalous a feature vector is, given the class that the model predicts.

A scorer learns from normal inputs alone, labelled with the model's own prediction p = M(ξ).
Its fitted state is a set of arrays, so that it can be saved without pickle.

Adding one: subclass `Scorer`, implement `fit` and `score`, and list the fitted arrays in `names`.
A `Vote` combines it with its features; a preset of `SliceDetector` uses the vote.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from nnslicer_tf._lazy import LazyModule
from nnslicer_tf._numerics import runner_up_margin

ops: Any = LazyModule("keras.ops")

# Samples whose distances are computed at once.
_ROWS = 1024
# Limits the scaling of features that hardly vary among the normal inputs.
_SMALLEST_SCALE = 1e-2


class Scorer(ABC):
    """Base class; the arrays in `names` are the whole state."""

    #: Names of the attributes that `fit` sets; if empty, there is nothing to fit.
    names: ClassVar[tuple[str, ...]] = ()
    #: Scores above it mean adversarial; None: the threshold is set from normal inputs.
    threshold: ClassVar[float | None] = None
    #: Whether `smooth_score` is implemented.
    differentiable: ClassVar[bool] = False

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn from normal inputs; does nothing by default.

        Args:
            vectors: (N, features) float32 or float64.
            predicted: (N,) int64, the classes that the model predicts.
            classes: How many classes there are.
        """
        return self

    @abstractmethod
    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return anomaly scores (N,) float64; higher is more anomalous.

        Args:
            vectors: (N, features), as for `fit`.
            predicted: (N,) int64, the classes that the model predicts.
        """

    def smooth_score(self, vectors: Any, predicted: Any) -> Any:
        """Return the anomaly scores as a tensor (N,) with a gradient.

        For attackers who know the detector. Scorers that are `differentiable` implement it with
        `keras.ops`.

        Args:
            vectors: Tensor (N, features) float32.
            predicted: Tensor (N,) of integers.
        """
        raise NotImplementedError(f"{type(self).__name__} has no gradient.")

    def state(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays by name."""
        return {name: getattr(self, name) for name in self.names}

    def restore(self, state: dict[str, np.ndarray]) -> Self:
        """Restore what `state` returned."""
        for name in self.names:
            setattr(self, name, state[name])
        return self


class Identity(Scorer):
    """Uses the feature itself as the anomaly score; there is nothing to learn."""

    differentiable = True

    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return `vectors`, which are (N,) here; see `Scorer.score`."""
        return vectors

    def smooth_score(self, vectors: Any, predicted: Any) -> Any:
        """Return `vectors`; see `Scorer.smooth_score`."""
        return vectors


class TreeDisagreement(Scorer):
    """1 if a decision tree F disagrees with the model, else 0.

    The rule of NNSlicer, section 6.1: flag ξ if F(slice) ≠ M(ξ).

    Args:
        seed: Breaks ties between equally good splits.
    """

    names = ("feature", "cut", "left", "right", "label")
    threshold = 0.5

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the tree; see `Scorer.fit`."""
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

    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return 1.0 or 0.0; see `Scorer.score`."""
        return (self.classify(vectors) != predicted).astype(np.float64)


class RidgeMargin(Scorer):
    """max over c ≠ p of z_c - z_p, for a ridge regression z on the classes (-1, +1).

    Above 0 the classifier disagrees with the model; a threshold below 0 also flags inputs on
    which it agrees with low confidence.

    Args:
        alpha: The penalty of the regression.
    """

    names = ("weights", "bias")
    differentiable = True

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the regression; see `Scorer.fit`."""
        from sklearn.linear_model import Ridge

        targets = np.where(np.arange(classes) == predicted[:, None], 1.0, -1.0)
        fitted = Ridge(alpha=self.alpha).fit(vectors, targets.astype(vectors.dtype))
        self.weights, self.bias = fitted.coef_.T.astype(np.float64), fitted.intercept_
        return self

    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the margins; see `Scorer.score`."""
        return runner_up_margin(vectors @ self.weights + self.bias, predicted)

    def smooth_score(self, vectors: Any, predicted: Any) -> Any:
        """Return the margins; see `Scorer.smooth_score`."""
        weights, bias = np.float32(self.weights), np.float32(self.bias)
        return smooth_margin(ops.matmul(vectors, weights) + bias, predicted)


class ScaledRidgeMargin(RidgeMargin):
    """`RidgeMargin` on features standardised by their standard deviations among normal inputs.

    For features of several layers: a synapse's contribution is at most the number of positions at
    which its layer applies it, so layers with many positions would otherwise dominate.

    Args:
        alpha: The penalty of the regression, on the scaled features.
    """

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the regression; see `Scorer.fit`."""
        scale = np.maximum(vectors.std(axis=0, dtype=np.float64), _SMALLEST_SCALE)
        super().fit(vectors / scale, predicted, classes)
        self.weights /= scale[:, None]
        return self


class RidgeFall(RidgeMargin):
    """The drop, from input to view, of a ridge regression's margin for the model's prediction.

    Each vector concatenates those of the input and of its view; the regression learns from the
    first. The score is its `RidgeMargin` on the view minus that on the input.

    Args:
        alpha: The penalty of the regression.
    """

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the regression; see `Scorer.fit`."""
        return super().fit(vectors[:, : vectors.shape[1] // 2], predicted, classes)

    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the differences; see `Scorer.score`."""
        plain, view = np.split(vectors, 2, axis=1)
        return super().score(view, predicted) - super().score(plain, predicted)

    def smooth_score(self, vectors: Any, predicted: Any) -> Any:
        """Return the differences; see `Scorer.smooth_score`."""
        half = vectors.shape[1] // 2
        of_view = super().smooth_score(vectors[:, half:], predicted)
        return of_view - super().smooth_score(vectors[:, :half], predicted)


class ClassDistance(Scorer):
    """Squared Mahalanobis distance to the mean of the predicted class.

    All classes share one covariance, shrunk by Ledoit and Wolf's formula. Cost: cubic in
    the number of features.
    """

    names = ("means", "whitening")
    differentiable = True

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn means and covariance; see `Scorer.fit`."""
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

    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the distances; see `Scorer.score`."""
        parts = []
        for first in range(0, len(vectors), _ROWS):
            rows = slice(first, first + _ROWS)
            white = (vectors[rows] - self.means[predicted[rows]]) @ self.whitening
            parts.append((white**2).sum(axis=1))
        return np.concatenate(parts)

    def smooth_score(self, vectors: Any, predicted: Any) -> Any:
        """Return the distances; see `Scorer.smooth_score`."""
        centred = vectors - ops.take(np.float32(self.means), predicted, axis=0)
        white = ops.matmul(centred, np.float32(self.whitening))
        return ops.sum(ops.square(white), axis=1)


class MembershipRatio(ClassDistance):
    """Log-likelihood ratio of the nearest other class and the predicted one.

    It is the `ClassDistance` of the predicted class minus the smallest of the other classes: twice
    the logarithm of a ratio of normal densities.
    """

    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the differences; see `Scorer.score`."""
        centre, means = self._white_means()
        parts = []
        for first in range(0, len(vectors), _ROWS):
            white = (vectors[first : first + _ROWS] - centre) @ self.whitening
            parts.append([((white - mean) ** 2).sum(axis=1) for mean in means])
        return runner_up_margin(-np.concatenate(parts, axis=1).T, predicted)

    def smooth_score(self, vectors: Any, predicted: Any) -> Any:
        """Return the differences; see `Scorer.smooth_score`."""
        centre, means = (np.float32(one) for one in self._white_means())
        white = ops.matmul(vectors - centre, np.float32(self.whitening))
        distances = ops.sum(ops.square(white[:, None] - means), axis=2)
        return smooth_margin(-distances, predicted)

    def _white_means(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of the class means, and their whitened differences from it."""
        centre = self.means.mean(axis=0)
        return centre, (self.means - centre) @ self.whitening


def smooth_margin(scores: Any, predicted: Any) -> Any:
    """Return `runner_up_margin` of tensors, (N,) float32."""
    own = ops.one_hot(predicted, scores.shape[-1])
    others = ops.where(own > 0, -np.float32(np.inf), scores)
    return ops.max(others, axis=1) - ops.sum(own * scores, axis=1)
