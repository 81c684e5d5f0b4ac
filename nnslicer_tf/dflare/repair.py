"""DRepair: correct a compressed model's labels from its probabilities (paper, section 5.5).

A perceptron with a single hidden layer learns the original model's label from the compressed
one's probability vector, on seeds and the triggering inputs found for them. The compressed
model stays a black box.

Cost: a second or two to fit 1,000 inputs; microseconds per input afterwards.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from sklearn.neural_network import MLPClassifier

from nnslicer_tf._checks import check_labels
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.dflare.classifiers import Classifier, ModelLike, as_classifier
from nnslicer_tf.dflare.deviations import DeviationSet
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError


class Repair(ClassifierMixin, BaseEstimator):
    """A perceptron from the compressed model's probabilities to the original's label.

    A scikit-learn classifier: `fit`, `predict`, `predict_proba`, `get_params`.

    Args:
        hidden: Units of the hidden layer.
        max_iter: Passes over the training data.
        random_state: Seed of the initial weights and of the order of the samples.
    """

    def __init__(self, hidden: int = 100, max_iter: int = 500, random_state: int = 0) -> None:
        self.hidden = hidden
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, probabilities: np.ndarray, labels: np.ndarray) -> "Repair":
        """Learn from the compressed model's probabilities and the original's labels.

        Args:
            probabilities: `(inputs, classes)`.
            labels: `(inputs,)` integers, the labels of the original model.

        Raises:
            InputShapeError: unless there is one label for each row of probabilities.
            InvalidArgumentError: if a label is not a class.
        """
        probabilities, labels = np.asarray(probabilities), np.asarray(labels)
        if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
            raise InputShapeError(
                "fit needs (inputs, classes) probabilities and (inputs,) labels. Received: "
                f"{probabilities.shape} and {labels.shape}"
            )
        classes = probabilities.shape[1]
        labels = check_labels(labels, len(probabilities), classes)
        network = MLPClassifier(
            (self.hidden,), max_iter=self.max_iter, random_state=self.random_state
        )
        self.network_ = _fit_quietly(network, probabilities, labels)
        self.classes_ = self.network_.classes_
        self.n_features_in_ = classes
        return self

    def predict(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the repaired labels, `(inputs,) int64`."""
        return self.network_.predict(probabilities)

    def predict_proba(self, probabilities: np.ndarray) -> np.ndarray:
        """Return probabilities of `classes_`, `(inputs, known classes)`."""
        if len(self.classes_) == 1:  # the perceptron always returns two columns or more
            return np.ones((len(probabilities), 1))
        return self.network_.predict_proba(probabilities)


class RepairedClassifier(Classifier):
    """A compressed model followed by its `Repair`; returns probabilities of all classes.

    Args:
        compressed: The compressed model; anything that `as_classifier` takes.
        repair: A fitted `Repair`.
    """

    def __init__(self, compressed: ModelLike, repair: Repair) -> None:
        self.compressed = as_classifier(compressed)
        self.repair = repair

    def probabilities(self, inputs: np.ndarray) -> np.ndarray:
        """Return the repaired probabilities; a label that the repair never saw gets 0."""
        known = self.repair.predict_proba(self.compressed.probabilities(inputs))
        repaired = np.zeros((len(inputs), self.repair.n_features_in_), np.float32)
        repaired[:, self.repair.classes_] = known
        return repaired


@dataclass(frozen=True, repr=False)
class RepairData:
    """Probabilities and labels for pairs of a seed and the triggering input found from it.

    Attributes:
        seeds: The compressed model's probabilities on the seeds, `(pairs, classes)`.
        seed_labels: The original's labels on them, `(pairs,)`.
        triggers: The compressed model's probabilities on the triggering inputs.
        trigger_labels: The original's labels on them.
    """

    seeds: np.ndarray
    seed_labels: np.ndarray
    triggers: np.ndarray
    trigger_labels: np.ndarray

    def __repr__(self) -> str:
        return f"RepairData({len(self.seeds)} pairs, {self.seeds.shape[1]} classes)"

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities and labels of seeds and triggering inputs together."""
        labels = np.concatenate([self.seed_labels, self.trigger_labels])
        return np.concatenate([self.seeds, self.triggers]), labels

    def part(self, pairs: np.ndarray) -> "RepairData":
        """Return the pairs with the given indices."""
        return RepairData(
            self.seeds[pairs],
            self.seed_labels[pairs],
            self.triggers[pairs],
            self.trigger_labels[pairs],
        )


@dataclass(frozen=True)
class RepairScore(ShownAsTable):
    """The effect of a repair on one test set (section 5.5.2).

    Attributes:
        triggers: Triggering inputs, all deviations before the repair.
        seeds: Inputs that did not deviate before.
        repair_count: Triggering inputs that no longer deviate.
        inducing_count: Seeds that deviate only now.
    """

    triggers: int
    seeds: int
    repair_count: int
    inducing_count: int

    def to_frame(self) -> "pd.DataFrame":
        """Return a table of one row: counts and ratios."""
        return pd.DataFrame([_row(self)])

    @property
    def repair_ratio(self) -> float:
        """Share of the triggering inputs that are repaired."""
        return self.repair_count / self.triggers

    @property
    def inducing_ratio(self) -> float:
        """Share of the seeds that are broken."""
        return self.inducing_count / self.seeds

    @property
    def improvement_count(self) -> int:
        """Deviations before minus deviations after."""
        return self.repair_count - self.inducing_count

    @property
    def improvement_ratio(self) -> float:
        """The improvement as a share of the deviations before."""
        return self.improvement_count / self.triggers


def repair_data(pair: ModelPair, seeds: np.ndarray, found: DeviationSet) -> RepairData:
    """Query the models with the seeds of successful searches and the triggering inputs found.

    Args:
        pair: The models of the search.
        seeds: Its seeds, `(seeds, ...)`.
        found: Its outcomes.

    Raises:
        InvalidArgumentError: if nothing was found.
    """
    if not found.found.any():
        raise InvalidArgumentError("A repair needs triggering inputs, and none was found.")
    before, after = pair.ask(seeds[found.found]), pair.ask(found.images)
    return RepairData(before.compressed, before.labels[:, 0], after.compressed, after.labels[:, 0])


def cross_validate(
    data: RepairData, folds: int = 5, rng: int = 0, repair: Repair | None = None
) -> pd.DataFrame:
    """Score repairs on held-out pairs: every fold is the test set once.

    A seed and its triggering input are always in the same fold.

    Args:
        data: Pairs of seeds and triggering inputs.
        folds: Number of folds.
        rng: Seed of the folds and of the perceptrons.
        repair: An unfitted `Repair` with other options; None: the default.

    Returns:
        One row per fold: `repair_count`, `repair_ratio`, `inducing_count`,
        `inducing_ratio`, `improvement_count`, `improvement_ratio`.

    Raises:
        InvalidArgumentError: if there are fewer pairs than folds.
    """
    if not 2 <= folds <= len(data.seeds):
        raise InvalidArgumentError(
            f"folds must be in 2 … {len(data.seeds)}, the number of pairs. Received: {folds}"
        )
    options = {} if repair is None else repair.get_params()
    rows = []
    splits = KFold(folds, shuffle=True, random_state=rng).split(np.arange(len(data.seeds)))
    for train, test in splits:
        fitted = Repair(**{**options, "random_state": rng}).fit(*data.part(train).all())
        rows.append(_row(score(fitted, data.part(test))))
    return pd.DataFrame(rows)


def score(repair: Repair, data: RepairData) -> RepairScore:
    """Score a fitted repair on pairs that it has not seen."""
    repaired = repair.predict(data.triggers) == data.trigger_labels
    broken = repair.predict(data.seeds) != data.seed_labels
    return RepairScore(len(repaired), len(broken), int(repaired.sum()), int(broken.sum()))


def _row(score: RepairScore) -> dict[str, float]:
    names = ("repair", "inducing", "improvement")
    return {
        f"{name}_{kind}": getattr(score, f"{name}_{kind}")
        for name in names
        for kind in ("count", "ratio")
    }


def _fit_quietly(network: MLPClassifier, x: np.ndarray, y: np.ndarray) -> MLPClassifier:
    """Fit without the warning at `max_iter`: stopping early prevents overfitting."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return network.fit(x, y)
