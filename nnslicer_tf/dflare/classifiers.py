"""Models under test as black boxes: from a batch of inputs to probabilities.

The last bits of a result can depend on the batch size, which would change the path of a search.
Keras models therefore always run with one padded batch size, computed even for one input, and
TFLite models with one input at a time, in threads. Functions passed in must ensure this themselves;
on some processors a Keras result still depends on its position in the batch.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import keras
import numpy as np

from nnslicer_tf._checks import as_array, check_count, shape_fits
from nnslicer_tf._environment import available_cores, without_retracing_warnings
from nnslicer_tf._files import digest
from nnslicer_tf._litert import LiteRTModel, dequantised, quantised
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError, SeveralInputsError
from nnslicer_tf.instrument.fingerprint import model_identity
from nnslicer_tf.instrument.loading import load_model

ModelLike = object  # anything that `as_classifier` takes

MAX_BATCH_BYTES = 256 << 20  # of a batch's inputs, and of its largest activation

_STEPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""16-bit type → relative step between its numbers."""


def rows_within_memory(shape: tuple[int, ...], most: int) -> int:
    """Return how many float32 rows of this shape fit into `MAX_BATCH_BYTES`: 1 … `most`."""
    return int(np.clip(MAX_BATCH_BYTES // max(1, 4 * math.prod(shape)), 1, most))


def ends_of(model: keras.Model, several_outputs: bool = False) -> tuple[Sequence, Sequence]:
    """Return a model's input and its output, unknown if it is subclassed; reject several."""
    inputs, outputs = (getattr(model, name, None) or () for name in ("inputs", "outputs"))
    if len(inputs) > 1:
        raise SeveralInputsError(
            f"Model '{model.name}' has {len(inputs)} inputs, and one is needed here. Join them in "
            "a wrapping model, which splits one tensor."
        )
    if len(outputs) > 1 and not several_outputs:
        raise InvalidArgumentError(
            f"Model '{model.name}' has {len(outputs)} outputs, and one is needed here. Choose one: "
            "ModelPair(…, output='name'), or keras.Model(model.inputs, model.outputs[0])."
        )
    return inputs, outputs


class Classifier(ABC):
    """A black box that returns class probabilities.

    Attributes:
        resolution: The step between two output values, 0 for floats of 32 bits or more.
    """

    resolution: float = 0.0

    @abstractmethod
    def probabilities(self, inputs: np.ndarray) -> np.ndarray:
        """Return the probabilities `(batch, classes) float32` of `(batch, ...)` inputs."""

    def content(self) -> str | None:
        """Return a digest of everything that determines the outputs; None if it cannot be read."""
        return None


class KerasClassifier(Classifier):
    """A Keras model with one input and output, in padded batches of at most `MAX_BATCH_BYTES`."""

    def __init__(self, model: keras.Model, batch_size: int = 32) -> None:
        check_count("batch_size", batch_size)
        inputs, outputs = ends_of(model)
        self.model = model
        self.resolution = _STEPS.get(outputs[0].dtype if outputs else model.compute_dtype, 0.0)
        self._batch_size = batch_size
        self._shape = tuple(inputs[0].shape[1:]) if inputs else None

    def content(self) -> str:
        """Return what tells the model from others."""
        return model_identity(self.model)

    def batch_size(self, shape: tuple[int, ...]) -> int:
        """Return the batch size for inputs of this shape."""
        largest, waiting = math.prod(shape), [self.model]
        while waiting:
            layer = waiting.pop()
            waiting.extend(getattr(layer, "layers", ()))
            try:
                extents = layer.output.shape[1:]
            except (AttributeError, ValueError):  # subclassed, several outputs, or shared
                continue
            # Free axes have about the extent of the input's.
            known = [n or (shape[i] if i < len(shape) else 1) for i, n in enumerate(extents)]
            largest = max(largest, math.prod(known))
        return rows_within_memory((largest,), self._batch_size)

    @without_retracing_warnings()
    def probabilities(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs as float32; raise `InputShapeError` for inputs of another shape."""
        shape = inputs.shape[1:]
        if self._shape is not None and not shape_fits(shape, self._shape):
            raise InputShapeError(
                f"Model '{self.model.name}' takes inputs of shape {self._shape}. Received: {shape}"
            )
        size, outputs = self.batch_size(shape), []
        for start in range(0, len(inputs), size):
            batch = inputs[start : start + size]
            padding = np.repeat(batch[:1], size - len(batch), axis=0)
            answers = self.model.predict_on_batch(np.concatenate([batch, padding]))
            outputs.append(np.asarray(answers).astype(np.float32, copy=False)[: len(batch)])
        return np.concatenate(outputs)


class TFLiteClassifier(Classifier):
    """A TFLite model with one input and one output, run by LiteRT one input at a time.

    Inputs are quantised and outputs dequantised as the file specifies. `workers` interpreters run
    in threads; None: one per core, at most 4. `kernels` as in `LiteRTModel`.
    """

    def __init__(
        self, model: str | os.PathLike | bytes, workers: int | None = None, kernels: str = ""
    ) -> None:
        first = LiteRTModel(model, kernels=kernels)
        workers = min(available_cores(), 4) if workers is None else workers
        more = [LiteRTModel(first.content, first.name, kernels=kernels) for _ in range(workers - 1)]
        self._models, self._made_of = [first, *more], (first.content, workers, kernels)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="tflite")
        self._input, self._output = first.ends()
        self.resolution = first.output_step()
        self._fitted: tuple[int, ...] | None = None
        self._turn = Lock()  # an interpreter has one set of tensors

    def probabilities(self, inputs: np.ndarray) -> np.ndarray:
        """Return the dequantised outputs; raise `InputShapeError` for inputs of another shape."""
        with self._turn:
            if self._fitted != inputs.shape[1:]:
                for model in self._models:
                    model.fit(inputs.shape[1:])
                self._output = self._models[0].ends()[1]
                self._fitted = inputs.shape[1:]
            inputs = quantised(inputs, self._input)
            if len(inputs) == 1 or len(self._models) == 1:
                outputs = self._run(self._models[0], inputs)
            else:
                parts = np.array_split(inputs, len(self._models))
                outputs = np.concatenate(list(self._threads.map(self._run, self._models, parts)))
            return dequantised(outputs, self._output)

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), self._made_of

    def by_reference_kernels(self) -> "TFLiteClassifier":
        """Return the same file, run by LiteRT's reference kernels, which are slow."""
        return TFLiteClassifier(self._models[0].content, len(self._models), "reference")

    def content(self) -> str:
        """Return a digest of the file."""
        return digest([self._models[0].content])

    def _run(self, model: LiteRTModel, inputs: np.ndarray) -> np.ndarray:
        interpreter = model.interpreter
        outputs = np.empty((len(inputs), *self._output["shape"][1:]), self._output["dtype"])
        for row in range(len(inputs)):
            interpreter.set_tensor(self._input["index"], inputs[row : row + 1])
            interpreter.invoke()
            outputs[row] = interpreter.get_tensor(self._output["index"])[0]
        return outputs


class FunctionClassifier(Classifier):
    """Any function from a batch of inputs to probabilities."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self.function = function

    def probabilities(self, inputs: np.ndarray) -> np.ndarray:
        """Return the function's result, which must have one row per input."""
        outputs = as_array(self.function(inputs.copy()))  # which may work in place
        if outputs.shape == (len(inputs),):
            outputs = outputs[:, None]
        if outputs.ndim < 2 or len(outputs) != len(inputs):
            raise InvalidArgumentError(
                f"A model must give (batch, classes) or (batch, …), here {len(inputs)} rows. "
                f"Received an array of shape {outputs.shape}."
            )
        return outputs


def as_classifier(model: ModelLike, batch_size: int = 32) -> Classifier:
    """Return `model` as a `Classifier`.

    Args:
        model: A `Classifier`, a Keras model, an object whose `model` is one (such as an
            `InstrumentedModel`), the path of a .tflite, .keras or .h5 file, the bytes of a TFLite
            model, an object with `predict`, or a function `(batch, ...) -> (batch, classes)`.
        batch_size: The fixed batch size for a Keras model.

    Raises InvalidArgumentError if `model` is none of these; CorruptFileError if a file is damaged.
    """
    if isinstance(model, Classifier):
        return model
    if isinstance(model, (str, os.PathLike)) and Path(model).suffix in (".keras", ".h5"):
        model = load_model(Path(model))
    inner = getattr(model, "model", model)
    if isinstance(inner, keras.Model):
        return KerasClassifier(inner, batch_size)
    if isinstance(model, (str, os.PathLike, bytes, bytearray)):
        return TFLiteClassifier(bytes(model) if isinstance(model, bytearray) else model)
    function = getattr(model, "predict", model)
    if callable(function):
        return FunctionClassifier(function)
    raise InvalidArgumentError(
        "A model must be a Keras model, an InstrumentedModel, a .tflite path or bytes, or a "
        f"function from a batch to probabilities. Received: {type(model).__name__}"
    )
