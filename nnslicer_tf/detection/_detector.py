"""`Detector`: what all detectors of adversarial inputs have in common.

A detector is a scikit-learn estimator that is fitted on normal inputs only. A part of
them is held out from learning; its scores set the threshold.
"""

import os
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

from nnslicer_tf._archive import read_archive, write_archive
from nnslicer_tf._random import as_generator
from nnslicer_tf.detection._thresholds import check_rate, threshold_at
from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument import InstrumentedModel, check_array

__all__ = ["Detector", "check_logits"]

_FORMAT = "nnslicer_tf detector 1"
_SAMPLES_OF_A_CLASS = 5


class Detector(BaseEstimator):
    """Base class; a subclass writes `_learn`, `_suspicion`, `_state` and `_restore`.

    The first argument of a subclass's constructor is what it looks at, an
    `InstrumentedModel` or a `Slicer`; copies made by `sklearn.base.clone` share it.
    Labels are 1 for adversarial and 0 for normal inputs.

    Attributes:
        threshold_: inputs whose score is above it are flagged.
        normal_scores_: scores of the held-out normal inputs, ascending float64.
    """

    im: InstrumentedModel
    #: Name of the constructor's argument that is looked at.
    source = "im"
    #: A threshold that the rule itself sets; None: it is set by the false-positive rate.
    fixed_threshold: float | None = None

    def fit(self, X: np.ndarray, y: np.ndarray | None = None) -> Self:
        """Learn what is normal.

        Args:
            X: (N, *input_shape) inputs as the model takes them.
            y: (N,) labels, so that a search over parameters can score; inputs with label
                1 are left out, nothing is learned from them. None: all are normal.

        Raises:
            InvalidArgumentError: if a parameter is out of range, there are too few normal
                inputs (of a class), or the model's outputs are probabilities.
            InputShapeError, NonFiniteActivationError: for bad data.
        """
        self._check_parameters()
        rate = check_rate(self.false_positive_rate)
        x = check_array(X, self.im.input_shape)
        x = x if y is None else x[_labels(y, len(x)) == 0]
        rng = as_generator(self.rng)
        learned, held = self._split(len(x), rng)
        if self.fixed_threshold is None:
            threshold_at(np.zeros(len(held)), rate)  # refuse too few before the work
        self._check_classes(x, learned)
        self._learn(x[learned], rng)
        self.normal_scores_ = np.sort(self._suspicion(x[held]))
        self.threshold_ = self.fixed_threshold
        if self.fixed_threshold is None:
            self.threshold_ = threshold_at(self.normal_scores_, rate)
        return self

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        """Return how suspicious inputs are, (N,) float64.

        Raises:
            NotFittedError: if the detector is not fitted.
        """
        self._check_fitted()
        return self._suspicion(check_array(X, self.im.input_shape))

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Return score minus threshold, (N,) float64: above 0 an input is flagged."""
        return self.score_samples(X) - self.threshold_

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return 1 for inputs that are flagged as adversarial, else 0, (N,) int64."""
        return (self.decision_function(X) > 0).astype(np.int64)

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        """Return the area under the ROC curve, which no threshold enters.

        Raises:
            InvalidArgumentError: if `y` does not have both labels.
        """
        y = _labels(y, len(X))
        if len(np.unique(y)) < 2:
            raise InvalidArgumentError("score needs normal (0) and adversarial (1) inputs in y.")
        return float(roc_auc_score(y, self.decision_function(X)))

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted detector to an .npz file; the model and the slicer stay outside.

        Raises:
            NotFittedError: if the detector is not fitted.
            InvalidArgumentError: if a parameter cannot be written, such as a Generator.
        """
        self._check_fitted()
        arrays = {"normal_scores": self.normal_scores_, "threshold": np.array(self.threshold_)}
        arrays |= {f"state/{name}": array for name, array in self._state().items()}
        parameters = self._parameters()
        if isinstance(parameters.get("rng"), np.random.Generator):
            raise InvalidArgumentError("A detector is saved with an int as rng, not a Generator.")
        header = {
            "class": type(self).__name__,
            "parameters": parameters,
            "identity": self._identity(),
        }
        write_archive(path, _FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike, source: Any) -> Self:
        """Read a fitted detector.

        Args:
            path: the file.
            source: the model or slicer that it was fitted with.

        Raises:
            FileNotFoundError: if there is no such file.
            CorruptFileError: if the file is damaged, or no detector.
            InvalidArgumentError: if it is a detector of another class.
            ProfileMismatchError: if `source` is another model, or has another profile.
        """
        header, arrays = read_archive(path, _FORMAT, "detector")
        if header["class"] != cls.__name__:
            raise InvalidArgumentError(
                f"'{path}' holds a {header['class']}: load it with {header['class']}.load."
            )
        detector = cls(source, **header["parameters"])
        if header["identity"] != detector._identity():
            raise ProfileMismatchError(
                f"The detector in '{path}' was fitted on another model than "
                f"'{detector.im.model.name}', or with another profile."
            )
        state = {k.removeprefix("state/"): a for k, a in arrays.items() if k.startswith("state/")}
        detector._restore(state)
        detector.normal_scores_ = arrays["normal_scores"]
        detector.threshold_ = float(arrays["threshold"])
        return detector

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted detector that shares the model, which cannot be copied."""
        return type(self)(**self.get_params(deep=False))

    def _check_parameters(self) -> None:
        """Refuse parameters of the subclass that are out of range, before any work."""

    @abstractmethod
    def _learn(self, x: np.ndarray, rng: np.random.Generator) -> None:
        """Learn from normal inputs."""

    @abstractmethod
    def _suspicion(self, x: np.ndarray) -> np.ndarray:
        """Return (N,) float64, the higher the more suspicious."""

    def _state(self) -> dict[str, np.ndarray]:
        """Return what `_learn` learned, as arrays by name."""
        return {}

    def _restore(self, state: dict[str, np.ndarray]) -> None:
        """Take what `_state` returned."""

    def _parameters(self) -> dict[str, Any]:
        """Return the constructor's arguments, less what is looked at."""
        return {k: v for k, v in self.get_params(deep=False).items() if k != self.source}

    def _identity(self) -> str:
        """Return a hash of what is looked at, by which a saved detector knows it again."""
        return self.im.fingerprint

    def _split(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return indices to learn from and indices that are held out."""
        share = self.held_out
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
            raise InvalidArgumentError(
                f"held_out is the share of the inputs that set the threshold, between 0 and 1. "
                f"Received: {share!r}"
            )
        order = rng.permutation(count)
        cut = round(count * (1 - share))
        return np.sort(order[:cut]), np.sort(order[cut:])

    def _check_classes(self, x: np.ndarray, learned: np.ndarray) -> None:
        """Refuse probabilities, and classes of which there is too little to learn from."""
        logits = self.im.logits(x)
        check_logits(logits)
        counts = np.bincount(logits[learned].argmax(axis=1), minlength=logits.shape[1])
        if counts.min() < _SAMPLES_OF_A_CLASS:
            raise InvalidArgumentError(
                f"The model predicts class {counts.argmin()} for {counts.min()} of the "
                f"{len(learned)} normal inputs to learn from; at least {_SAMPLES_OF_A_CLASS} of "
                "each class are needed. Fit on more normal inputs."
            )

    def _check_fitted(self) -> None:
        if not hasattr(self, "threshold_"):
            name = type(self).__name__
            raise NotFittedError(
                f"This {name} is not fitted: call fit with normal inputs first, or {name}.load."
            )


def check_logits(logits: np.ndarray) -> None:
    """Refuse outputs that are no logits.

    A model that ends in a softmax layer is no trouble, its logits are read before it.

    Args:
        logits: (N, …) the model's outputs.

    Raises:
        InvalidArgumentError: if they are no vectors of at least two, or probabilities.
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise InvalidArgumentError(
            f"Detection needs a classifier with logits (N, classes). It gave {logits.shape}."
        )
    if (logits >= 0).all() and np.allclose(logits.sum(axis=1), 1, atol=1e-4):
        raise InvalidArgumentError(
            "The model outputs probabilities, and its last layer is not one whose softmax can "
            "be taken off. Give a model that ends in logits or in a softmax."
        )


def _labels(y: Any, count: int) -> np.ndarray:
    """Return labels (N,), 0 or 1."""
    y = np.asarray(y)
    if y.shape != (count,) or not np.isin(y, (0, 1)).all():
        raise InvalidArgumentError(
            f"y must be one label for each of the {count} inputs, 0 (normal) or 1 "
            f"(adversarial). Received: {y.dtype} of shape {y.shape}"
        )
    return y
