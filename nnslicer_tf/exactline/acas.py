"""ACAS Xu: reads `.nnet` networks, and converts them to Keras models.

The format (K. Julian, Stanford 2016): comment lines that begin with `//`; the number of layers,
inputs and outputs, and the largest layer's size; the layers' sizes; an unused flag; the inputs'
minima, maxima, means and ranges (the last two also for the outputs); then for each layer its
weights row by row, and its biases one per line.
"""

import os
from dataclasses import dataclass
from itertools import pairwise

import keras
import numpy as np
from keras import layers

from nnslicer_tf._checks import counted
from nnslicer_tf._files import as_path
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError

ADVISORIES = ("clear of conflict", "weak left", "weak right", "strong left", "strong right")
"""Meanings of the outputs of an ACAS Xu network; the lowest output is the advice."""


@dataclass(frozen=True, repr=False)
class NNet:
    """The contents of an `.nnet` file: a network of dense layers with ReLU between them."""

    weights: tuple[np.ndarray, ...]  # for each layer, (outputs, inputs) float64
    biases: tuple[np.ndarray, ...]  # for each layer, (outputs,) float64
    minima: np.ndarray  # (inputs,), to which inputs are clipped in use, as to the maxima
    maxima: np.ndarray  # (inputs,)
    means: np.ndarray  # (inputs + 1,); the last entry is for the outputs
    ranges: np.ndarray  # (inputs + 1,), likewise

    def __repr__(self) -> str:
        sizes = [self.weights[0].shape[1], *(len(bias) for bias in self.biases)]
        return f"NNet({' → '.join(map(str, sizes))})"


def load_nnet(path: str | os.PathLike) -> NNet:
    """Read an `.nnet` file; raise CorruptFileError, naming the line, if it is invalid."""
    path = as_path(path)
    if not path.is_file():
        raise InvalidArgumentError(f"There is no file '{path}'.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"'{path}' is not a text file: {error}") from error
    number = 0

    def failure(expected: str, received: object) -> CorruptFileError:
        return CorruptFileError(
            f"'{path}' is not a valid .nnet file: in line {number}, expected {expected}. "
            f"Received: {received}."
        )

    def fields() -> list[str]:
        """Return the fields of the next line that is not a comment."""
        nonlocal number
        while number < len(lines):
            line = lines[number].strip()
            number += 1
            if line and not line.startswith("//"):
                return [field.strip() for field in line.rstrip(",").split(",")]
        raise failure("more lines", "the end of the file: it is truncated")

    def numbers(count: int, what: str, whole: bool = False) -> np.ndarray:
        received = fields()
        if len(received) != count:
            raise failure(f"{what}: {count} numbers", len(received))
        try:
            values = np.array(received, np.float64)
        except ValueError as error:
            raise failure(f"{what}: numbers", received) from error
        if not np.isfinite(values).all():
            raise failure(f"{what}: finite numbers", received)
        if whole and ((values < 1).any() or (values != np.rint(values)).any()):
            raise failure(f"{what}: positive whole numbers", values.tolist())
        return values.astype(np.int64) if whole else values

    depth, inputs, outputs, _ = numbers(4, "layers, inputs, outputs, largest layer", whole=True)
    sizes = numbers(depth + 1, "the layers' sizes", whole=True).tolist()
    if (sizes[0], sizes[-1]) != (inputs, outputs):
        raise failure(f"sizes of {counted(inputs, 'input')} to {counted(outputs, 'output')}", sizes)
    fields()  # an unused flag
    minima = numbers(inputs, "the inputs' minima")
    maxima = numbers(inputs, "the inputs' maxima")
    means = numbers(inputs + 1, "the means")
    ranges = numbers(inputs + 1, "the ranges")
    if not (ranges != 0).all():
        raise failure("ranges other than zero", ranges.tolist())
    weights, biases = [], []
    for before, after in pairwise(sizes):
        weights.append(np.stack([numbers(before, "a row of weights") for _ in range(after)]))
        biases.append(np.concatenate([numbers(1, "a bias") for _ in range(after)]))
    while number < len(lines):
        number += 1
        if lines[number - 1].strip():
            raise failure("the end of the file", f"'{lines[number - 1][:40]}'")
    return NNet(tuple(weights), tuple(biases), minima, maxima, means, ranges)


def to_keras(nnet: NNet, dtype: str = "float32") -> keras.Model:
    """Return the network as a Keras model, with inputs and outputs in physical units.

    It does not clip inputs to the minima and maxima. Of "float64" layers, all digits are kept.
    """
    ranges, means = nnet.ranges, nnet.means
    x = inputs = keras.Input((len(nnet.minima),), dtype=dtype, name="input")
    scale, offset = 1 / ranges[:-1], -means[:-1] / ranges[:-1]
    x = layers.Rescaling(scale.tolist(), offset.tolist(), dtype=dtype, name="normalise")(x)
    for i, (weights, biases) in enumerate(zip(nnet.weights, nnet.biases, strict=True)):
        activation = "relu" if i < len(nnet.weights) - 1 else None
        dense = layers.Dense(len(biases), activation, dtype=dtype, name=f"dense{i + 1}")
        x = dense(x)
        dense.set_weights([weights.T, biases])
    x = layers.Rescaling(float(ranges[-1]), float(means[-1]), dtype=dtype, name="outputs")(x)
    return keras.Model(inputs, x, name="acas_xu")
