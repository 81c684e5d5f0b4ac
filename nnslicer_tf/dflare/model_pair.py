"""The two models under test, queried together."""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress

import keras
import numpy as np

from nnslicer_tf._checks import as_array, check_name, check_number, counted, of_user
from nnslicer_tf._files import digest
from nnslicer_tf._numerics import TASKS
from nnslicer_tf.dflare import classifiers
from nnslicer_tf.dflare.domain import (
    Answers,
    Domain,
    check_outputs,
    class_probabilities,
    judge,
    kind_of,
)
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.tables import SignalDomain, TableDomain
from nnslicer_tf.dflare.text import TextDomain
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError, NNSlicerError
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.data import one_order
from nnslicer_tf.instrument.outputs import tasks_of_losses
from nnslicer_tf.instrument.plausibility import warn, warn_of_scale

MAX_CHUNK = 1024  # inputs preprocessed and queried at once, if they fit into memory
_MIN_STEPS = 1000  # columns from which on rows are signals, not rows of a table

Preprocess = Callable[[np.ndarray], np.ndarray]


class ModelPair:
    """An original model and its compressed version.

    Args:
        original: A model of any kind that `as_classifier` takes.
        compressed: Likewise.
        preprocess: Maps seeds to the models' inputs; None: float32 values, sentences as they are.
        domain: The kind of input; None: chosen by the seeds, see `for_seeds`.
        batch_size: Fixed batch size for Keras models; reduced where memory requires it.
        task: What the outputs are, as for `InstrumentedModel`: "binary", "multiclass" (in maps at
            each position), "multilabel" or "regression" (numbers). None: that of an instrumented
            original, or as a Keras model's loss and the outputs' values say: numbers are those that
            are no probabilities.
        tolerance: How far two answers may be apart and still agree. Numbers need it: the root mean
            square of their differences, in their own unit. Of maps and independent labels it is the
            share of positions that may differ; None: no position.
        output: Name of the output that is compared, of Keras models with several.

    Raises InvalidArgumentError or CorruptFileError as `as_classifier`; SeveralInputsError if a
    model has several inputs.
    """

    def __init__(
        self,
        original: classifiers.ModelLike,
        compressed: classifiers.ModelLike,
        preprocess: Preprocess | None = None,
        *,
        domain: Domain | None = None,
        batch_size: int = 32,
        task: str | None = None,
        tolerance: float | None = None,
        output: str | None = None,
    ) -> None:
        models = original, compressed
        self.columns = one_order(*(getattr(one, "columns", ()) for one in (*models, domain)))
        if output is not None:
            of_keras = keras.Model, InstrumentedModel
            original, compressed = (
                instrumented(m).of_output(output) if isinstance(m, of_keras) else m for m in models
            )
        if task is not None:
            check_name("task", task, TASKS)
        if tolerance is not None:
            check_number("tolerance", tolerance, "[0, inf)")
        if task is None and isinstance(original, InstrumentedModel):
            task = original.classes.task
        self.task, self.tolerance = task, tolerance
        self.original = classifiers.as_classifier(original, batch_size)
        self.compressed = classifiers.as_classifier(compressed, batch_size)
        self.preprocess, self._domain = preprocess, domain
        # The task of the loss with which a Keras original was compiled, or ""
        model = getattr(self.original, "model", None)
        self._of_loss, _ = tasks_of_losses(model, {"": ""})[""]
        is_open = task is None and tolerance is not None and self._of_loss in ("", "multilabel")
        if is_open and model is not None and len(model.output_shape) == 2:
            with suppress(NNSlicerError):  # the last function tells labels from numbers
                if instrumented(model).classes.task == "multilabel":
                    self._of_loss = "multilabel"
                    warn("Outputs count as independent labels; numbers need task='regression'.")

    @property
    def domain(self) -> Domain:
        """The kind of input; images if none was chosen."""
        return ImageDomain() if self._domain is None else self._domain

    def for_seeds(self, seeds: np.ndarray) -> "ModelPair":
        """Return the pair with the domain of these seeds, unless it has one already.

        Bytes of three or four axes are images. `(seeds, length)` integers are sentences if the
        original is a Keras model with an embedding, which defines similar words. Other
        `(seeds, columns)` numbers are table rows, or signals from 1,000 columns on, like
        `(seeds, steps, …)`, such as spectrograms; their ranges are those of the seeds. A
        `PlausibilityWarning` says so if these could be images.

        Raises InputShapeError if there is no domain for this shape.
        """
        if self._domain is not None:
            return self
        embeddings = []
        layers = [getattr(self.original, "model", None)]
        while layers and seeds.ndim == 2 and seeds.dtype.kind in "iu":
            layer = layers.pop()
            layers.extend(getattr(layer, "layers", ()))
            if isinstance(layer, keras.layers.Embedding) and layer.built:
                embeddings.append(layer)
        domain: Domain
        if seeds.ndim in (3, 4) and seeds.dtype == np.uint8:
            domain = ImageDomain()
        elif embeddings:
            largest = max(embeddings, key=lambda layer: layer.input_dim)
            domain = TextDomain(keras.ops.convert_to_numpy(largest.embeddings))
        elif seeds.ndim == 2 and seeds.shape[1] < _MIN_STEPS:
            domain = TableDomain(seeds)
        elif seeds.ndim in (2, 3, 4):
            domain = SignalDomain(seeds)
            low, high = float(seeds.min()), float(seeds.max())
            if seeds.ndim == 4 and low >= 0 and high <= 255:
                times = " * 255" if high <= 1 else ""
                warn(
                    f"Seeds of {seeds.dtype} from {low:g} to {high:g} are mutated as signals. Pass "
                    f"images as np.rint(seeds{times}).astype('uint8'), with preprocess= for the "
                    "models' scale; ModelPair(…, domain=SignalDomain(seeds)) hides this warning."
                )
        else:
            raise InputShapeError(
                f"No domain accepts seeds of shape {seeds.shape}. There are domains for images "
                "(seeds, height, width, channels), rows (seeds, columns), signals (seeds, steps, "
                "…) and sentences (seeds, length) of integers. For others, subclass dflare.Domain "
                "and pass ModelPair(…, domain=)."
            )
        pair = copy.copy(self)
        pair._domain = domain
        return pair

    def one_by_one(self) -> "ModelPair":
        """Return the pair with Keras models at batch size 1."""
        pair = copy.copy(self)
        for name, one in (("original", self.original), ("compressed", self.compressed)):
            if isinstance(one, classifiers.KerasClassifier):
                setattr(pair, name, classifiers.KerasClassifier(one.model, 1))
        return pair

    def inputs(self, batch: np.ndarray) -> np.ndarray:
        """Return the models' inputs for seeds or their mutants."""
        batch = as_array(batch)
        if self.preprocess is None and batch.dtype.kind not in "biuf":
            raise InputShapeError(
                f"Samples must be numbers; received {batch.dtype}. Pass preprocess=, which turns "
                "them into the models' inputs."
            )
        with of_user("preprocess"):
            preprocess = self.domain.as_inputs if self.preprocess is None else self.preprocess
            inputs = np.asarray(preprocess(batch.copy()))  # which may work in place
        if inputs.shape[:1] != (len(batch),):
            raise InvalidArgumentError(
                f"`preprocess` must return {counted(len(batch), 'input')}. Received: {inputs.shape}"
            )
        return inputs

    def ask(self, batch: np.ndarray) -> Answers:
        """Query both models with seeds or their mutants `(batch, ...)`; check their outputs."""
        if not len(batch):
            raise InputShapeError("There are no samples: pass at least one.")
        parts = []
        for inputs in self._chunks(batch):
            with of_user("original"):
                original = self.original.probabilities(inputs)
            step, limit = self.original.resolution, self.tolerance
            kind = kind_of(original, step, self.task, limit, self._of_loss)
            check_outputs(original, kind, step, "original", limit)
            with of_user("compressed"):
                compressed = self.compressed.probabilities(inputs)
            if original.shape != compressed.shape:
                raise InvalidArgumentError(
                    "The two models must give outputs of the same shape. Received: original "
                    f"{original.shape}, compressed {compressed.shape}"
                )
            check_outputs(compressed, kind, self.compressed.resolution, "compressed", limit)
            parts.append(judge(original, compressed, kind, limit))
        return parts[0] if len(parts) == 1 else Answers.joined(parts)

    def identity(self, seeds: np.ndarray) -> dict[str, str]:
        """Return digests of the models and of their inputs; of a function, of all its outputs."""
        models = [
            classifier.content() or digest(map(classifier.probabilities, self._chunks(seeds)))
            for classifier in (self.original, self.compressed)
        ]
        judged = f"{self.task or self._of_loss}, tolerance {self.tolerance}"
        return {"inputs": digest(self._chunks(seeds)), "models": " ".join(models), "task": judged}

    def warn_of_scale(
        self, images: np.ndarray, answers: Answers, truth: np.ndarray | None = None
    ) -> None:
        """Warn if the original recognises images of 0 … 255 only, or better, scaled otherwise."""
        warn_of_scale(
            lambda x: class_probabilities(self.original.probabilities(x)),
            None if self.preprocess is None else self.inputs,
            images,
            class_probabilities(answers.original),
            truth,
        )

    def _chunks(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the models' inputs in chunks that fit into memory."""
        batch = as_array(batch)
        size = classifiers.rows_within_memory(batch.shape[1:], MAX_CHUNK)
        for start in range(0, len(batch), size):
            yield self.inputs(batch[start : start + size])
