"""Activations and predictions for the inputs of slices, of the whole model and of parts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._kernels import pools
from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.kinds import Layout

MOST_CLASSES = 5
"""Number of classes whose probabilities are stored."""


def activations(im: InstrumentedModel, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return the mean value of every neuron over samples: operation → `(*shape)` float32.

    Args:
        im: The model.
        x: Samples `(samples, *input_shape)`; for a single sample, its values are returned.
    """
    if len(x) == 1:
        return {name: values[0] for name, values in im.capture(x).items()}
    totals = {o.name: np.zeros(o.shape) for o in im.operations}
    for batch in im.capture_batches(x, batch_size=32):
        for name, values in batch.items():
            totals[name] += values.sum(axis=0, dtype=np.float64)
    return {name: (total / len(x)).astype(np.float32) for name, total in totals.items()}


def channel_means(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the mean of every channel over its positions, `(channels,)` float32."""
    return {
        name: value.reshape(-1, value.shape[-1]).mean(axis=0, dtype=np.float64).astype(np.float32)
        for name, value in values.items()
    }


def tap_changes(operation: Operation, value: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return Δ of the inputs of a filter's synapses, `(taps, inputs)` float32.

    The input of a synapse is the mean, over all windows, of the value that it multiplies
    (NNSlicer, Equation 1).

    Args:
        operation: A weighted sum.
        value: The values of its input, `(*input shape)`.
        mean: Their means in the profile.
    """
    rows = [np.ascontiguousarray(v).reshape(1, -1, v.shape[-1]) for v in (value, mean)]
    read, usual = (pools.tap_means(row, operation.params.taps)[0] for row in rows)
    return (read - usual).astype(np.float32)


def layout_means(means: Mapping[str, np.ndarray], granularity: str) -> dict[str, np.ndarray]:
    """Return the profile's means of neurons at a granularity, float64."""
    layout = Layout(granularity, means)
    return {name: layout.mean(name) for name in means}


@dataclass(frozen=True)
class Answer:
    """The most likely classes with their probabilities, in descending order."""

    classes: tuple[int, ...]
    probabilities: tuple[float, ...]


def is_classifier(im: InstrumentedModel) -> bool:
    """Return whether a model's output is one vector of at least two logits."""
    shape = im[im.logit_operation].shape
    return len(im.output_operations) == 1 and len(shape) == 1 and shape[0] > 1


def masks(synapses: Mapping[str, np.ndarray], inverted: bool) -> dict[str, Any]:
    """Mark the synapses that are members, or those that are not if `inverted`."""
    return {
        name: (np.asarray(v) == 0 if inverted else np.asarray(v) != 0)
        for name, v in synapses.items()
    }


def strongest(weights: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of each output that are largest in magnitude.

    Args:
        weights: `(taps, inputs per group, outputs)`.
        most: Number of weights for each output.

    Returns:
        (row-major indices of (tap, input), `(outputs, most)` int64; the weights, float32).
    """
    by_output = weights.reshape(-1, weights.shape[-1]).T
    found = np.argpartition(-np.abs(by_output), min(most, by_output.shape[1]) - 1, axis=1)
    found = np.sort(found[:, :most], axis=1)
    return found, np.take_along_axis(by_output, found, axis=1)


def total_size(operations: Iterable[Operation]) -> int:
    """Return the number of neurons of operations, counting activations instead of channels."""
    return sum(operation.size for operation in operations)


def answer(logits: np.ndarray) -> Answer:
    """Return the mean prediction of some samples, given their logits `(samples, classes)`."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares = (shifted / shifted.sum(axis=1, keepdims=True)).mean(axis=0)
    order = np.argsort(-shares, kind="stable")[:MOST_CLASSES]
    return Answer(tuple(int(i) for i in order), tuple(float(shares[i]) for i in order))
