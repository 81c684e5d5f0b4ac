"""Scorers: how anomalous a feature vector is, given the class that the model predicts.

A scorer learns from normal inputs alone, labelled with the model's own prediction p = M(ξ).
"""

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import LinAlgWarning

from nnslicer_tf.detection.images import array_module, margin, operand
from nnslicer_tf.errors import InvalidArgumentError


class Scorer(ABC):
    """Base class of scorers.

    A subclass implements `score` and, if there is anything to learn, `fit`; it lists the fitted
    arrays, its whole state, in `names`, so that it can be saved without pickle.
    """

    #: Names of the attributes that `fit` sets; if empty, there is nothing to fit.
    names: ClassVar[tuple[str, ...]] = ()
    #: Names of the axes of these attributes, by which arrays from a file are checked.
    axes: ClassVar[dict[str, str]] = {}
    #: Scores above it mean adversarial; None: the threshold is set from normal inputs.
    threshold: ClassVar[float | None] = None

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn from normal inputs; does nothing by default.

        Args:
            vectors: (N, features) float32 or float64.
            predicted: (N,) int64, the classes that the model predicts.
            classes: The number of classes.
        """
        return self

    @abstractmethod
    def score(self, vectors: Any, predicted: Any) -> Any:
        """Return a finite number for each input, (N,); higher is more anomalous."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays by name; raise InvalidArgumentError if one is missing."""
        found = {name: np.asarray(getattr(self, name, None)) for name in self.names}
        kinds = [array.dtype.kind in "biuf" for array in found.values()]
        if not all(kinds) or (type(self).fit is not Scorer.fit and not kinds):
            raise InvalidArgumentError(f"{type(self).__name__}.names must name `fit`'s arrays.")
        return found

    def restore(self, state: dict[str, np.ndarray]) -> Self:
        """Restore what `state` returned; raise ValueError for arrays that do not fit each other."""
        extents: dict[str, int] = {}
        for name in self.names:
            array, axes = state[name], self.axes.get(name, "").split()
            known = [extents.setdefault(a, n) for a, n in zip(axes, array.shape, strict=False)]
            if axes and (len(axes) != array.ndim or known != [*array.shape]):
                raise ValueError(f"{name!r} has shape {array.shape}, expected {known or axes}")
            setattr(self, name, array)
        return self


class Identity(Scorer):
    """Uses the feature itself, (N,), as the anomaly score."""

    def score(self, vectors: Any, predicted: Any) -> Any:
        """Return `vectors`."""
        return vectors


class TreeDisagreement(Scorer):
    """1 if a decision tree F disagrees with the model, F(slice) ≠ M(ξ), else 0 (NNSlicer, 6.1)."""

    names = ("feature", "cut", "left", "right", "label")
    axes: ClassVar[dict[str, str]] = dict.fromkeys(names, "nodes")
    threshold = 0.5

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the tree."""
        from sklearn.tree import DecisionTreeClassifier

        classifier = DecisionTreeClassifier(random_state=self.seed).fit(vectors, predicted)
        tree = classifier.tree_
        self.feature, self.cut = tree.feature.copy(), tree.threshold.copy()
        self.left, self.right = tree.children_left.copy(), tree.children_right.copy()
        self.label = classifier.classes_[tree.value[:, 0].argmax(axis=1)]
        return self

    def restore(self, state: dict[str, np.ndarray]) -> Self:
        """Restore what `state` returned; raise ValueError if the nodes are no tree."""
        super().restore(state)
        inner, nodes = self.left >= 0, np.arange(len(self.left))
        for child in (self.left, self.right):  # further children follow, or `classify` never ends
            if (child[inner] <= nodes[inner]).any() or (child >= len(nodes)).any():
                raise ValueError("the nodes are no tree")
        return self

    def classify(self, vectors: np.ndarray) -> np.ndarray:
        """Return the tree's classes (N,)."""
        rows = np.arange(len(vectors))
        node = np.zeros(len(vectors), np.int64)
        while True:
            inner = self.left[node] >= 0
            if not inner.any():
                return self.label[node]
            below = vectors[rows, np.where(inner, self.feature[node], 0)] <= self.cut[node]
            node = np.where(inner, np.where(below, self.left[node], self.right[node]), node)

    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return 1.0 or 0.0."""
        return (self.classify(vectors) != predicted).astype(np.float64)


class RidgeMargin(Scorer):
    """Max over c ≠ p of z_c - z_p, for a ridge regression z on the classes (-1, +1).

    Above 0 the classifier disagrees with the model; a threshold below 0 also flags inputs on which
    it agrees with low confidence. `alpha` is the penalty of the regression.
    """

    names = ("weights", "bias")
    axes: ClassVar[dict[str, str]] = {"weights": "features classes", "bias": "classes"}

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the regression."""
        from sklearn.linear_model import Ridge

        targets = np.where(np.arange(classes) == predicted[:, None], 1.0, -1.0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", LinAlgWarning)
                ridge = Ridge(alpha=self.alpha).fit(vectors, targets.astype(vectors.dtype))
        except LinAlgWarning:  # the features' scales differ by more than float32 resolves
            ridge = Ridge(alpha=self.alpha, solver="svd").fit(vectors.astype(np.float64), targets)
        self.weights, self.bias = ridge.coef_.T.astype(np.float64), ridge.intercept_
        return self

    def score(self, vectors: Any, predicted: Any) -> Any:
        """Return the margins."""
        values = array_module(vectors).matmul(vectors, operand(self.weights, vectors))
        return margin(values + operand(self.bias, vectors), predicted)


class ClassDistance(Scorer):
    """Squared Mahalanobis distance to the mean of the predicted class.

    All classes share one covariance, shrunk by Ledoit and Wolf's formula. Cost: cubic in features.
    """

    names = ("means", "whitening")
    axes: ClassVar[dict[str, str]] = {"means": "classes features", "whitening": "features features"}

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn means and covariance."""
        from sklearn.covariance import ledoit_wolf

        rows = (vectors[predicted == label] for label in range(classes))
        self.means = np.stack([part.mean(axis=0, dtype=np.float64) for part in rows])
        covariance, _ = ledoit_wolf(vectors - self.means[predicted], assume_centered=True)
        # A synapse that is constant within all classes must not divide by zero.
        floor = 1e-9 * max(np.trace(covariance) / len(covariance), 1e-9)
        covariance[np.diag_indices_from(covariance)] += floor
        self.whitening = np.linalg.inv(np.linalg.cholesky(covariance)).T
        return self

    def score(self, vectors: Any, predicted: Any) -> Any:
        """Return the distances."""
        xp = array_module(vectors)
        means, whitening = (operand(array, vectors) for array in (self.means, self.whitening))
        centred = vectors - xp.take(means, predicted, axis=0)
        return xp.sum(xp.square(xp.matmul(centred, whitening)), axis=1)
