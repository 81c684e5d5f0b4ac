"""Costs of a model: parameters, multiply-adds, latency, file size.

Latencies are medians over single samples, measured on this machine, so other work on it affects
them. LiteRT runs in one thread.
"""

import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import keras
import numpy as np

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, Synapses, instrumented
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning.recurrent_units import gate_of

_WARM_UP = 5


@dataclass(frozen=True)
class Costs:
    """The costs of a model.

    Attributes:
        parameters: Number of parameters.
        multiply_adds: Number of multiply-adds in its weighted sums, for one sample.
        keras_ms: Median latency of a compiled Keras call with one sample, in milliseconds.
        litert_ms: The same in LiteRT, one thread; NaN if TensorFlow cannot convert the model.
        file_bytes: Size of its LiteRT file in 32-bit floating point; 0 if there is none.
    """

    parameters: int
    multiply_adds: int
    keras_ms: float
    litert_ms: float
    file_bytes: int


def multiply_adds(model: ModelLike) -> int:
    """Return the number of multiply-adds of a model's weighted sums, for one sample.

    Args:
        model: Any model that `InstrumentedModel` accepts. Padding counts as if it were computed.
    """
    im = instrumented(model)
    total = 0
    for operation in im.operations:
        gate = gate_of(operation)
        if isinstance(operation.params, Synapses):
            _, inputs, outputs = operation.params.from_kernel(_nothing(operation.params)).shape
            total += operation.params.taps.size * inputs * outputs
        elif gate is not None:  # at each step
            rows = sum(weights.kernel.shape[0] for weights in gate.weights)
            total += int(np.prod(operation.shape)) * rows
    return total


def _nothing(kernel: Synapses) -> np.ndarray:
    return np.empty(kernel.shape, np.int8)


def measure_costs(model: keras.Model, sample: np.ndarray, runs: int = 50) -> Costs:
    """Measure the costs of a model.

    Args:
        model: The model.
        sample: One sample, of the model's input shape.
        runs: Number of calls for each median.
    """
    batch = np.asarray(sample, np.float32)[None]
    try:
        content = to_litert(model)
    except UnsupportedLayerError:
        content = b""
    return Costs(
        parameters=int(model.count_params()),
        multiply_adds=multiply_adds(InstrumentedModel(model, batch.shape[1:])),
        keras_ms=_median_ms(lambda: model.predict_on_batch(batch), runs),
        litert_ms=_litert_ms(content, batch, runs) if content else float("nan"),
        file_bytes=len(content),
    )


def to_litert(model: keras.Model) -> bytes:
    """Return a model as the content of a LiteRT file (.tflite), in 32-bit floating point.

    Raises:
        UnsupportedLayerError: if TensorFlow cannot convert the model, or is not the backend.
    """
    if keras.backend.backend() != "tensorflow":
        raise UnsupportedLayerError(
            "LiteRT files are written by TensorFlow's converter. Set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()}"
        )
    import tensorflow as tf
    from tensorflow.lite.python.convert_phase import ConverterError

    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return tf.lite.TFLiteConverter.from_keras_model(model).convert()
        except (ConverterError, ValueError) as error:
            raise UnsupportedLayerError(
                f"TensorFlow cannot convert model '{model.name}' to LiteRT: {error}"
            ) from error


def save_model(model: keras.Model, path: Path) -> None:
    """Write a model in the format of its file's ending: .keras, .tflite, .onnx, or a SavedModel.

    A path without an ending becomes a folder (SavedModel). A file is written completely or not at
    all.

    Raises:
        ImportError: if a library that Keras needs for ONNX is missing.
        UnsupportedLayerError: if TensorFlow cannot convert the model to LiteRT.
    """
    if not path.suffix:
        model.export(path, verbose=False)
        return
    with atomic_path(path) as temporary:
        if path.suffix == ".tflite":
            temporary.write_bytes(to_litert(model))
        elif path.suffix == ".keras":
            model.save(temporary)
        else:
            model.export(temporary, format="onnx", verbose=False)


def _litert_ms(content: bytes, batch: np.ndarray, runs: int) -> float:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=1)
    (given,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(given["index"], batch.shape)  # its size may not be fixed
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], batch.astype(given["dtype"]))  # tokens are integers
    return _median_ms(interpreter.invoke, runs)


def _median_ms(call: Callable[[], object], runs: int) -> float:
    for _ in range(_WARM_UP):
        call()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))
