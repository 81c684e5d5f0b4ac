"""How often two models agree on a test set."""

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from nnslicer_tf._checks import ArrayLike, as_array, counted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.dflare.classifiers import TFLiteClassifier
from nnslicer_tf.dflare.domain import NO_LABEL
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.errors import InputShapeError, NonFiniteActivationError
from nnslicer_tf.instrument.data import aligned, dense


@dataclass(frozen=True, eq=False, repr=False)
class Agreement(ShownAsTable):
    """The answers of two models to the same inputs."""

    # The original's and the compressed model's label, (inputs, 2, …) int64, of maps at each
    # position; None for numbers.
    labels: np.ndarray | None
    # Whether the answers differ, by more than the tolerance of maps and numbers, (inputs,) bool;
    # labels as on a device: of equal outputs, the first counts.
    differs: np.ndarray
    distance: np.ndarray  # largest difference of a probability or number, (inputs,) float64
    truth: np.ndarray | None = None  # the right answers (inputs, …), if known
    # Whether the labels differ and two classes tie for the best in either model, (inputs,) bool.
    ties: np.ndarray | None = None
    # Whether LiteRT's reference kernels give the compressed file another label, (inputs,) bool;
    # only where the labels differ or tie. None for other models.
    by_kernels: np.ndarray | None = None
    # How far the answers of maps and numbers are apart, see `ModelPair`, (inputs,) float64.
    apart: np.ndarray | None = None
    # Figure → its value for both models, if the truth is known; those of `pruning.shrink`.
    quality: dict[str, tuple[float, float]] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per input."""
        columns: dict[str, np.ndarray] = {}
        if self.apart is None and self.labels is not None:
            columns["original"], columns["compressed"] = self.labels.T
        columns |= {"differs": self.differs, "largest difference": self.distance}
        extra = {"apart": self.apart, "tie": self.ties, "reference kernels differ": self.by_kernels}
        columns |= {name: values for name, values in extra.items() if values is not None}
        if self.truth is not None and self.truth.ndim == 1:
            columns["true label"] = self.truth
        return pd.DataFrame(columns).rename_axis("input").reset_index()

    def __repr__(self) -> str:
        share = 1 - self.differs.mean()
        known = ""
        for name, (first, second) in self.quality.items():
            form = ".3g" if name in ("R²", "RMSE") else ".2%"
            known += f", {name} {first:{form}} → {second:{form}}" * ("class" not in name)
        ties = 0 if self.ties is None else int(self.ties.sum())
        known += f", {counted(ties, 'difference')} from ties" if ties else ""
        kernels = 0 if self.by_kernels is None else int(self.by_kernels.sum())
        known += f", {counted(kernels, 'label')} otherwise by reference kernels" if kernels else ""
        apart, what = self.distance, "probabilities differ by up to"
        if self.labels is None and self.apart is not None:
            apart, what = self.apart, "numbers differ by"
        return (
            f"Agreement({share:.2%} of {counted(len(self.differs), 'input')}{known}, "
            f"{what} {apart.mean():.2g} on average, by {apart.max():.2g} at most)"
        )


def agreement(pair: ModelPair, x: Any, y: ArrayLike | None = None) -> Agreement:
    """Compare two models on a test set.

    Labels are those of the largest output, the first of equal ones, as devices count. Fully
    quantised files often have ties: differences from these are marked. Where the labels differ,
    LiteRT's reference kernels are asked, too: its optimised ones round differently. Maps and
    numbers agree within the pair's tolerance.

    Args:
        pair: The models and their preprocessing.
        x: Inputs `(inputs, ...)`, a pair `(x, y)`, or a `Dataset` with labels.
        y: The right answers, if known: classes `(inputs,)`, of maps at each position, or numbers.

    Raises InvalidArgumentError if the outputs differ in size, or are neither probabilities nor
    numbers with a tolerance (see `ModelPair`); InputShapeError if there are no inputs, or a model
    expects another shape; NonFiniteActivationError for NaN or infinite inputs.
    """
    if isinstance(x, tuple) and len(x) == 2:
        x, given = x
        y = given if y is None else y
    x = aligned(x, pair.columns)
    if isinstance(x, Dataset):
        y = x.y if y is None and len(x.y) else y
        x = x.x
    inputs = dense(x) if hasattr(x, "iloc") else as_array(x)
    if inputs.ndim == 0:
        raise InputShapeError(f"x must be an array, a table or a Dataset. Received: {str(x)[:60]}")
    if not len(inputs):
        raise InputShapeError("There are no inputs: pass at least one.")
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        raise NonFiniteActivationError("The inputs have NaN or infinite values. Fill or drop them.")
    answers = pair.ask(inputs)
    kind, has_labels = answers.kind, not (answers.labels == NO_LABEL).any()
    truth = None if y is None else kind.truth(y, len(inputs))
    if has_labels and inputs.ndim == 4 and inputs.min() >= 0 and 1 < inputs.max() <= 255:
        first = inputs[:64]
        pair.warn_of_scale(first, pair.ask(first), None if truth is None else truth[:64])
    outputs = answers.original.astype(np.float64), answers.compressed.astype(np.float64)
    distance = np.abs(outputs[0] - outputs[1]).reshape(len(inputs), -1).max(axis=1)
    both = [kind.answers(values) for values in outputs]
    apart = kind.distances(*both)
    differs = apart > (pair.tolerance or 0.0)
    by_kernels = None
    if isinstance(pair.compressed, TFLiteClassifier) and has_labels:
        by_kernels = np.zeros(len(inputs), bool)
        if len(rows := np.flatnonzero(differs)):
            by_reference = copy.copy(pair)
            by_reference.compressed = pair.compressed.by_reference_kernels()
            by_kernels[rows] = by_reference.ask(inputs[rows]).labels[:, 1] != both[1][rows]
    return Agreement(
        labels=None if kind.is_number else np.stack(both, axis=1),
        differs=differs,
        distance=distance,
        truth=truth,
        ties=None if kind.is_number else differs & ~answers.deviates,
        by_kernels=by_kernels,
        apart=None if has_labels else apart,
        quality={} if truth is None else kind.both_qualities(both, truth),
    )
