"""`Detector`, the base class of all detectors of adversarial inputs, and their evaluation."""

import os
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

from nnslicer_tf._checks import ArrayLike, as_generator, check_labels, check_number
from nnslicer_tf._files import digest, read_archive, write_archive
from nnslicer_tf.detection.calibration import as_scores, false_alarms, threshold_at
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.errors import InvalidArgumentError, NNSlicerError, ProfileMismatchError
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.fingerprint import same_model, weights_checksum
from nnslicer_tf.instrument.outputs import check_classifier
from nnslicer_tf.instrument.plausibility import check_logits, warn, warn_of_range
from nnslicer_tf.slicing import Slicer

_FORMAT = "nnslicer_tf detector 1"
MIN_SAMPLES_OF_A_CLASS = 5


# A dataclass, because scikit-learn needs a constructor with explicit arguments.
@dataclass(eq=False, repr=False, kw_only=True)
class Detector(BaseEstimator):
    """Base class of detectors: scikit-learn estimators that are fitted on normal inputs only.

    Some normal inputs are held out from learning; their anomaly scores set the threshold. Labels
    are 1 for adversarial and 0 for normal inputs.

    A subclass is a dataclass of its constructor's arguments, `@dataclass(eq=False, repr=False)`;
    the first is the `InstrumentedModel` or `Slicer`, which copies made by `sklearn.base.clone`
    share. It implements `anomaly_scores` and, if there is anything to learn, `learn`, with `state`
    and `restore` to support saving.

    Args:
        false_positive_rate: Share of normal inputs that may be flagged, where the rule asks for it.
        held_out: Share of the normal inputs that is used to set the threshold.
        rng: Draws the held-out inputs, then makes all other random choices.

    Attributes:
        im: The instrumented model.
        threshold_: Inputs with a higher anomaly score are flagged.
        normal_scores_: Anomaly scores of the held-out normal inputs, ascending float64.
    """

    #: Name of the constructor's first argument.
    source: ClassVar[str] = "im"
    #: Whether the model must be a classifier, and each of its classes have normal inputs.
    needs_classes: ClassVar[bool] = True
    #: Whether arguments name kernels or outputs, so that a file needs a model with these names.
    names_parts: ClassVar[bool] = False

    im: InstrumentedModel = field(init=False)
    false_positive_rate: float = 0.05
    held_out: float = 0.25
    rng: int | np.random.Generator = 0

    threshold_: float = field(init=False)
    normal_scores_: np.ndarray = field(init=False)
    _range: Any = field(init=False, default=())  # (low, high) of the inputs of `fit`
    _columns: tuple[str, ...] = field(init=False, default=())  # of their table

    def __post_init__(self) -> None:
        if self.source == "im":
            self.im = instrumented(self.im)

    def _rates(self) -> tuple[float, float]:
        """Return the checked rate of false alarms and share of inputs that are held out."""
        rate = check_number("false_positive_rate", self.false_positive_rate, "(0, 1)")
        return rate, check_number("held_out", self.held_out, "(0, 1)")

    @property
    def fixed_threshold(self) -> float | None:
        """The threshold that the rule itself defines; None: the false-positive rate sets it."""
        return None

    def learn(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Learn from normal inputs; nothing by default."""

    @abstractmethod
    def anomaly_scores(self, evidence: Evidence) -> Any:
        """Return a finite number for each input, (N,); higher is more anomalous."""

    def _scores(self, evidence: Evidence) -> np.ndarray:
        source = f"{type(self).__name__}.anomaly_scores"
        return as_scores(self.anomaly_scores(evidence), len(evidence), source)

    def state(self) -> dict[str, np.ndarray]:
        """Return what `learn` learned, as arrays by name."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""

    def check_parameters(self) -> None:
        """Reject invalid parameters of the subclass, before any work."""

    def evidence(self, x: np.ndarray) -> Evidence:
        """Return the evidence on inputs (N, *input_shape)."""
        return Evidence(self.im, x)

    def identity(self) -> str:
        """Return a hash of the model, which a saved detector checks when it is loaded."""
        return self.im.fingerprint

    def _known_model(self) -> str:
        """Return what `same_model` compares when a detector is loaded."""
        return self.im.identity if self.names_parts else f"- - {self.im.own_code}".strip()

    def fit(self, X: np.ndarray, y: ArrayLike | None = None) -> Self:
        """Learn what is normal.

        Args:
            X: (N, *input_shape) inputs as the model takes them.
            y: (N,) labels, for scikit-learn's parameter searches; inputs with label 1 are ignored.

        Raises InvalidArgumentError if a parameter is out of range, there are too few normal inputs
        (of a class), the model's outputs are probabilities, or a score is not finite;
        InputShapeError or NonFiniteActivationError for bad data.
        """
        self.check_parameters()
        rate, share = self._rates()
        of_classes = {"exclusive": True, "one_output": True}
        count = check_classifier(self.im, **of_classes) if self.needs_classes else 0
        _ = self.im.input_shape  # raises an error for several inputs
        self._columns = self.im.named_by(X).columns
        x = self._checked_x(X)
        x = x if y is None else x[check_labels(y, len(x), 2) == 0]
        rng = as_generator(self.rng)
        order, cut = rng.permutation(len(x)), round(len(x) * (1 - share))
        learned, held = np.sort(order[:cut]), np.sort(order[cut:])
        fixed = self.fixed_threshold
        if fixed is None:
            threshold_at(np.zeros(len(held)), rate)  # reject too few inputs before the work
        evidence = self.evidence(x)
        if self.needs_classes:
            check_logits(evidence.logits)
            counts = np.bincount(evidence.predicted[learned], minlength=count)
            if counts.min() < MIN_SAMPLES_OF_A_CLASS:
                raise InvalidArgumentError(
                    f"'{self.im.model.name}' predicts class {counts.argmin()} for {counts.min()} "
                    f"of the {len(learned)} normal inputs to learn from; at least "
                    f"{MIN_SAMPLES_OF_A_CLASS} of each class are needed. Fit on more normal inputs."
                )
        self.__dict__.pop("threshold_", None)  # a failed refit leaves no half detector
        self.learn(evidence.rows(learned), rng)
        self.normal_scores_ = np.sort(self._scores(evidence.rows(held)))
        self.threshold_ = threshold_at(self.normal_scores_, rate) if fixed is None else fixed
        self._weights = weights_checksum(self.im.model)
        self._range = float(x.min()), float(x.max())
        return self

    def _checked_x(self, X: Any) -> np.ndarray:
        return self.im.with_columns(self.im.columns or self._columns).check(X)

    @property
    def false_alarms_(self) -> tuple[float, float, float]:
        """Share of the held-out normal inputs that are flagged, and a 95 % interval of the rate.

        The interval is that of the rate on new normal inputs of the same kind.
        """
        self._check_fitted()
        return false_alarms(self.normal_scores_, self.threshold_, self.fixed_threshold is not None)

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        """Return the anomaly scores of inputs, (N,) float64; raise NotFittedError before `fit`."""
        self._check_fitted()
        x = self._checked_x(X)
        if self.source == "im" and self._range and len(x):  # a slicer compares with its profile
            warn_of_range(x, None, self._range, None, known="detector")
        return self._scores(self.evidence(x))

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Return score minus threshold, (N,) float64; inputs above 0 are flagged."""
        return self.score_samples(X) - self.threshold_

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return 1 for inputs flagged as adversarial, else 0, (N,) int64."""
        return (self.decision_function(X) > 0).astype(np.int64)

    def score(self, X: np.ndarray, y: ArrayLike) -> float:
        """Return the area under the ROC curve; `y` must contain both labels."""
        y = check_labels(y, len(X), 2)
        if len(np.unique(y)) < 2:
            raise InvalidArgumentError("score needs normal (0) and adversarial (1) inputs in y.")
        return float(roc_auc_score(y, self.decision_function(X)))

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted detector to an .npz file, without the model and the slicer.

        Raises NotFittedError, or InvalidArgumentError for a parameter such as a Generator.
        """
        self._check_fitted()
        arrays = {"normal_scores": self.normal_scores_, "threshold": np.array(self.threshold_)}
        arrays["range"] = np.array(self._range)
        arrays |= {f"state/{name}": array for name, array in self.state().items()}
        parameters = self._parameters()
        if isinstance(parameters.get("rng"), np.random.Generator):
            raise InvalidArgumentError("To save a detector, create it with an int as rng.")
        header = {"class": type(self).__name__, "parameters": parameters}
        header["columns"] = list(self._columns)
        header |= {"identity": self.identity(), "model": self._known_model()}
        write_archive(path, _FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike, source: InstrumentedModel | Slicer) -> Self:
        """Read a detector that was fitted with the model or slicer `source`.

        If the slicer's θ differs from the file's, the detector uses a copy with the file's θ.

        Raises MissingFileError if there is no such file; CorruptFileError if the file is damaged,
        or does not hold a detector; InvalidArgumentError if it holds a detector of another class;
        ProfileMismatchError if the model, the profile or the slicer's options differ.
        """
        with read_archive(path, _FORMAT, "detector") as file:
            name, parameters = file.value("class", str), file.value("parameters", dict)
            if name != cls.__name__:
                raise InvalidArgumentError(f"'{path}' holds a {name}: load it with {name}.load.")
            detector = cls._with_parameters(source, parameters)
            detector._rates()  # raises an error if they are out of range
            now = detector._known_model()
            known = file.value("model", str) if "model" in file.header else now  # older files
            if file.value("identity", str) != detector.identity() or not same_model(known, now):
                raise ProfileMismatchError(
                    f"The detector in '{path}' was fitted on a different model than "
                    f"'{detector.im.model.name}', or with another profile or other options."
                )
            detector._columns = tuple(file.names("columns") if "columns" in file.header else ())
            scores = detector.normal_scores_ = file.array("normal_scores", np.float64, "scores")
            is_sorted = len(scores) > 0 and bool((np.diff(scores) >= 0).all())
            file.check(is_sorted, "its normal scores are missing or not in ascending order")
            detector.threshold_ = float(file.array("threshold", np.floating, ""))
            detector._weights = weights_checksum(detector.im.model)
            state = file.arrays("state/")
            for key, array in state.items():
                if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
                    raise file.error(f"'state/{key}' has values that are no finite numbers")
            # Arrays that are missing or of other shapes raise an error here, not when used later.
            detector.restore(state)
            low = 0.0 if detector.im.bounds is None else detector.im.bounds[0]
            with suppress(NNSlicerError):  # a model need not take such an input
                detector.score_samples(np.full((1, *detector.im.input_shape), low, np.float32))
            if "range" in file:  # files of version 0.2 have none
                low, high = detector._range = tuple(file.array("range", np.floating, "2").tolist())
                file.check(low <= high, f"its inputs range from {low} to {high}")
        return detector

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted detector that shares the model, which cannot be copied."""
        return type(self)(**self.get_params(deep=False))

    def _parameters(self) -> dict[str, Any]:
        """Return the constructor's arguments to save: all but the first."""
        return {k: v for k, v in self.get_params(deep=False).items() if k != self.source}

    @classmethod
    def _with_parameters(cls, source: Any, parameters: dict[str, Any]) -> Self:
        return cls(source, **parameters)

    def _check_fitted(self) -> None:
        name = type(self).__name__
        if not hasattr(self, "threshold_"):
            raise NotFittedError(f"This {name} is not fitted: call fit, or {name}.load.")
        if self._weights != weights_checksum(self.im.model):
            raise ProfileMismatchError(
                f"The weights of '{self.im.model.name}' have changed: fit this {name} again."
            )


@dataclass(eq=False, repr=False)
class LogitMargin(Detector):
    """Flags inputs whose two largest logits are close: the model is unsure."""

    im: InstrumentedModel

    def anomaly_scores(self, evidence: Evidence) -> Any:
        """Return the margins of the predictions."""
        return evidence.margins


@dataclass(eq=False, repr=False)
class ReconstructionError(Detector):
    """Flags inputs that an autoencoder reconstructs badly, by the root mean square error.

    The arguments are those of `Detector`, and:

    Args:
        im: A model with an output of the inputs' shape and scale, such as an autoencoder.
        output: Name of that output, if there are several.
    """

    needs_classes: ClassVar[bool] = False
    names_parts: ClassVar[bool] = True

    im: InstrumentedModel
    _: KW_ONLY
    output: str | None = None

    def check_parameters(self) -> None:
        """Reject a model whose output has another shape than its inputs."""
        shape = self.im[self.im.output_operation_of(self.output)].shape
        if shape != self.im.input_shape:
            raise InvalidArgumentError(
                "A reconstruction has the shape of the inputs. Received: inputs of shape "
                f"{self.im.input_shape}, an output of shape {shape}"
            )

    def learn(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Warn if the reconstructions are farther from the inputs than their mean is."""
        mean = np.broadcast_to(evidence.x.mean(axis=0), evidence.x.shape)
        if self.anomaly_scores(evidence).mean() > _root_mean_squares(evidence.x - mean).mean():
            warn(
                "The model's outputs are farther from the normal inputs than these are from their "
                "own mean. Check that it reconstructs its inputs, in the scale passed to fit."
            )

    def anomaly_scores(self, evidence: Evidence) -> Any:
        """Return the root mean square differences of inputs and reconstructions."""
        return _root_mean_squares(self.im.predict(evidence.x, output=self.output) - evidence.x)


def _root_mean_squares(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(values, dtype=np.float64).reshape(len(values), -1).mean(axis=1))


def evaluate(
    detector: Detector, attacks: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> pd.DataFrame:
    """Evaluate a detector as in NNSlicer's Table 4, and with a threshold-free measure.

    For each attack, the detector sees the examples that mislead the model and their originals, so
    that flagging everything has an F1 of 2/3. Each distinct input is scored only once.

    Args:
        detector: A fitted detector.
        attacks: Name → (originals, adversarial inputs), (N, *input_shape), successful ones only.

    Returns a row for each attack, with the columns `attack`, `examples` (N), `precision` (0 if
    nothing is flagged), `recall`, `f1`, `auroc`, `recall_at_5` (at the threshold of 5 % false
    positives among the detector's held-out normal inputs; 0 if a yes-or-no rule flags more of them,
    and NaN if there are fewer than 19) and `false_positives` (the rate among the originals).

    Raises InvalidArgumentError if an attack has no examples, or not as many as originals;
    NotFittedError if the detector is not fitted.
    """
    for name, (originals, adversarial) in attacks.items():
        if not len(originals) or len(originals) != len(adversarial):
            raise InvalidArgumentError(
                f"'{name}' has {len(adversarial)} adversarial inputs and {len(originals)} "
                "originals: pass at least one successful example, and the original of each."
            )
    detector._check_fitted()
    im = detector.im.with_columns(detector.im.columns or detector._columns)
    im = im.named_by(*(x for pair in attacks.values() for x in pair))
    rows, cache = [], dict[str, float]()
    for name, (originals, adversarial) in attacks.items():
        # Score the inputs that no attack before had.
        x, count = np.concatenate([im.check(originals), im.check(adversarial)]), len(originals)
        keys = [digest([sample]) for sample in x]
        new = {key: i for i, key in enumerate(keys) if key not in cache}
        if new:
            scores = detector.score_samples(x[list(new.values())])
            cache.update(zip(new, scores.tolist(), strict=True))
        scores = np.array([cache[key] for key in keys])
        flagged = scores > detector.threshold_
        truth = np.repeat([0, 1], count)
        precision, recall, f1, _ = precision_recall_fscore_support(
            truth, flagged, average="binary", zero_division=0
        )
        normal = detector.normal_scores_
        recall_at_5 = float("nan")
        if len(normal) >= 19:
            recall_at_5 = float(np.mean(scores[count:] > threshold_at(normal, 0.05)))
        rows.append(
            {
                "attack": name,
                "examples": count,
                "precision": precision,
                "recall": recall,
                "f1": f1,
                "auroc": float(roc_auc_score(truth, scores)),
                "recall_at_5": recall_at_5,
                "false_positives": float(np.mean(flagged[:count])),
            }
        )
    return pd.DataFrame(rows)
