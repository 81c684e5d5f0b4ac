"""Costs of a model: parameters, multiply-adds, latency, file size.

Latencies are medians over single samples on this machine, as busy as it is. LiteRT: one thread.
"""

import timeit
from collections.abc import Callable
from functools import cached_property, partial

import numpy as np

from nnslicer_tf._environment import without_retracing_warnings
from nnslicer_tf._litert import LiteRTModel, quantised, to_litert
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, ModelLike, Synapses, instrumented
from nnslicer_tf.pruning.units import gate_of

_WARM_UP = 5


class Costs:
    """The costs of a model for one sample, measured when read; latency is a median of 50 runs."""

    def __init__(self, model: ModelLike, sample: np.ndarray) -> None:
        self._given = model
        self._model = model.model if isinstance(model, InstrumentedModel) else model
        self._batch = np.asarray(sample, np.float32)[None]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return int(self._model.count_params())

    @cached_property
    def multiply_adds(self) -> int:
        """Number of multiply-adds in its weighted sums, for one sample, including any padding."""
        im, total = instrumented(self._given, self._batch), 0
        for operation in im.operations:
            kernel, gate = operation.params, gate_of(operation)
            if isinstance(kernel, Synapses):
                _, inputs, outputs = kernel.from_kernel(np.empty(kernel.shape, np.int8)).shape
                total += kernel.taps.size * inputs * outputs
            elif gate is not None:  # at each step
                rows = sum(weights.kernel.shape[0] for weights in gate.weights)
                total += int(np.prod(operation.shape)) * rows
        return total

    @cached_property
    def keras_ms(self) -> float:
        """Median latency of a compiled Keras call with one sample, in milliseconds."""
        return float(np.median(_milliseconds(partial(self._model.predict_on_batch, self._batch))))

    @cached_property
    def litert_ms(self) -> float:
        """Median latency in LiteRT, in milliseconds; NaN if TensorFlow cannot convert the model."""
        if not self._litert:
            return float("nan")
        return float(np.median(litert_latencies(self._litert, self._batch[0])))

    @property
    def file_bytes(self) -> int:
        """Size of its LiteRT file in 32-bit floating point; 0 if there is none."""
        return len(self._litert)

    @cached_property
    def _litert(self) -> bytes:
        try:
            return to_litert(self._model)
        except UnsupportedLayerError:
            return b""


def litert_latencies(file: bytes, sample: np.ndarray, runs: int = 50) -> np.ndarray:
    """Return the latencies of a LiteRT file with one sample, in milliseconds, `(runs,)`."""
    model = LiteRTModel(file)
    model.fit(sample.shape)
    tensor, _ = model.ends()
    model.interpreter.set_tensor(tensor["index"], quantised(sample[None], tensor))
    return _milliseconds(model.interpreter.invoke, runs)


@without_retracing_warnings()
def _milliseconds(call: Callable[[], object], runs: int = 50) -> np.ndarray:
    timeit.repeat(call, number=1, repeat=_WARM_UP)
    return 1e3 * np.array(timeit.repeat(call, number=1, repeat=runs))
