"""How often two models agree on a test set."""

import copy
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nnslicer_tf._checks import ArrayLike, as_array, check_labels, counted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.dflare.classifiers import TFLiteClassifier
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.errors import InputShapeError


@dataclass(frozen=True, eq=False, repr=False)
class Agreement(ShownAsTable):
    """The answers of two models to the same inputs."""

    labels: np.ndarray  # the original's and the compressed model's label, (inputs, 2) int64
    # Whether the labels differ, (inputs,) bool, as on a device: of equal outputs, the first counts.
    differs: np.ndarray
    distance: np.ndarray  # largest difference of a probability, (inputs,) float64
    truth: np.ndarray | None = None  # the true classes (inputs,), if known
    # Whether the labels differ and two classes tie for the best in either model, (inputs,) bool.
    ties: np.ndarray | None = None
    # Whether LiteRT's reference kernels give the compressed file another label, (inputs,) bool;
    # only where the labels differ or tie. None for other models.
    by_kernels: np.ndarray | None = None

    @property
    def accuracies(self) -> tuple[float, float]:
        """Accuracy of the original and of the compressed model; NaN if the truth is unknown."""
        if self.truth is None:
            return float("nan"), float("nan")
        original, compressed = (self.labels == self.truth[:, None]).mean(axis=0)
        return float(original), float(compressed)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per input."""
        first, second = self.labels.T
        columns = {"original": first, "compressed": second, "differs": self.differs}
        columns["largest difference"] = self.distance
        extra = {"tie": self.ties, "reference kernels differ": self.by_kernels}
        columns |= {name: values for name, values in extra.items() if values is not None}
        if self.truth is not None:
            columns["true label"] = self.truth
        return pd.DataFrame(columns).rename_axis("input").reset_index()

    def __repr__(self) -> str:
        share = 1 - self.differs.mean()
        first, second = self.accuracies
        known = "" if self.truth is None else f", accuracy {first:.2%} → {second:.2%}"
        ties = 0 if self.ties is None else int(self.ties.sum())
        known += f", {counted(ties, 'difference')} from ties" if ties else ""
        kernels = 0 if self.by_kernels is None else int(self.by_kernels.sum())
        known += f", {counted(kernels, 'label')} otherwise by reference kernels" if kernels else ""
        return (
            f"Agreement({share:.2%} of {counted(len(self.labels), 'input')}{known}, "
            f"probabilities differ by {self.distance.mean():.2g} on average, "
            f"by {self.distance.max():.2g} at most)"
        )


def agreement(pair: ModelPair, x: np.ndarray | Dataset, y: ArrayLike | None = None) -> Agreement:
    """Compare two models on a test set.

    Labels are those of the largest output, the first of equal ones, as devices count. Fully
    quantised files often have ties: differences from these are marked. Where the labels differ,
    LiteRT's reference kernels are asked, too: its optimised ones round differently.

    Args:
        pair: The models and their preprocessing.
        x: Inputs `(inputs, ...)`, or a `Dataset` with labels.
        y: The true classes `(inputs,)`, if known.

    Raises:
        InvalidArgumentError: if the outputs differ in size or are not probabilities.
        InputShapeError: if there are no inputs, or a model expects another shape.
    """
    if isinstance(x, Dataset):
        y = x.y if y is None and len(x.y) else y
        x = x.x
    inputs = as_array(x)
    if inputs.ndim == 0 or not len(inputs):
        raise InputShapeError("There are no inputs: pass at least one.")
    answers = pair.ask(inputs)
    truth = None if y is None else check_labels(y, len(inputs), max(2, answers.original.shape[1]))
    distance = np.abs(answers.original.astype(np.float64) - answers.compressed).max(axis=1)
    first, second = answers.labels.T
    differs = first != second
    ties = differs & ~answers.deviates
    by_kernels = None
    if isinstance(pair.compressed, TFLiteClassifier):
        by_kernels = np.zeros(len(inputs), bool)
        if len(rows := np.flatnonzero(differs)):
            by_reference = copy.copy(pair)
            by_reference.compressed = pair.compressed.by_reference_kernels()
            by_kernels[rows] = by_reference.ask(inputs[rows]).labels[:, 1] != second[rows]
    return Agreement(answers.labels, differs, distance, truth, ties, by_kernels)
