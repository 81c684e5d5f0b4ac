"""A LiteRT file as a graph of steps whose values can be read."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nnslicer_tf._litert import (
    dequantised,
    fit_input,
    interpreter_of,
    one_input_and_output,
    quantised,
    read_content,
    stands_for_numbers,
)
from nnslicer_tf.errors import InvalidArgumentError

_RESHAPING = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")

_AXES = {
    "CONV_2D": (1, 2, 3, 0),
    "FULLY_CONNECTED": (1, 0),
    "DEPTHWISE_CONV_2D": (1, 2, 3, 0),
    "TRANSPOSE_CONV": (1, 2, 0, 3),
    "CONV_3D": (0, 1, 2, 3, 4),
    "GATHER": (0, 1),
    "EMBEDDING_LOOKUP": (0, 1),
}
"""Step → the axes of its weights in Keras's order."""


@dataclass(frozen=True)
class FileStep:
    """A step of a file that depends on the input.

    Attributes:
        kind: Its LiteRT name, such as "CONV_2D".
        inputs: Indices of the tensors that depend on the input.
        output: Index of the tensor that it computes.
        weights: Index of its kernel's tensor; None without one.
        others: Indices of the other tensors that it computes.
    """

    kind: str
    inputs: tuple[int, ...]
    output: int
    weights: int | None
    others: tuple[int, ...] = ()


class LiteRTGraph:
    """The steps of a LiteRT file.

    Args:
        model: A path, or the content of the file.
        shape: Shape of one sample.

    Attributes:
        name: The file's name in messages.
        steps: The steps, in the order in which they run.
        input: Index of the input's tensor.
        output: Index of the output's tensor.
        without_bias: Indices of tensors whose bias is added by a later step.

    Raises:
        CorruptFileError: if it is damaged or not a LiteRT model.
        InputShapeError: if it takes inputs of another shape.
        InvalidArgumentError: unless it has exactly one input and output, for one sample.
    """

    def __init__(self, model: str | os.PathLike | bytes, shape: tuple[int, ...]) -> None:
        content, self.name = read_content(model)
        self._interpreter = interpreter_of(content, self.name, keep_tensors=True)
        one_input_and_output(self._interpreter, self.name)
        fit_input(self._interpreter, self.name, shape)
        source, target = one_input_and_output(self._interpreter, self.name)
        self.input, self.output = source["index"], target["index"]
        self._tensors = {t["index"]: t for t in self._interpreter.get_tensor_details()}
        self._made_of: dict[int, int] = {}  # computed constant → its source
        self.steps = tuple(self._read_steps())
        self.without_bias = frozenset(self._read_without_bias())

    def tensor_name(self, index: int) -> str:
        """Return the name of a tensor."""
        return self._tensors[index]["name"]

    def stored(self, index: int) -> str:
        """Return how a tensor is stored, such as "int8"."""
        index = self._made_of.get(index, index)
        return np.dtype(self._tensors[index]["dtype"]).name

    def kernel(self, step: FileStep) -> np.ndarray:
        """Return a step's float32 weights, with the axes in Keras's order."""
        if step.weights is None:
            raise InvalidArgumentError(f"A step {step.kind} has no weights.")
        tensor = self._tensors[step.weights]
        stored = self._interpreter.get_tensor(step.weights)
        if (
            tensor["dtype"] == np.uint8
            and not tensor["quantization_parameters"]["zero_points"].any()
        ):
            # Files from 2019 declare the signed bytes of dynamic-range weights as unsigned.
            stored = stored.view(np.int8)
        values = dequantised(stored, tensor)
        return values.transpose(_AXES[step.kind]).astype(np.float32)

    def run(self, x: np.ndarray, tensors: Iterable[int]) -> dict[int, np.ndarray]:
        """Run the file and return the dequantised values of tensors, for every sample.

        Args:
            x: Samples `(samples, *input shape)` float32.
            tensors: Indices of tensors with a first axis of one sample.

        Returns:
            Index → `(samples, …)` float32.
        """
        wanted = tuple(tensors)
        found: dict[int, list[np.ndarray]] = {index: [] for index in wanted}
        for sample in quantised(x, self._tensors[self.input]):
            self._interpreter.set_tensor(self.input, sample[None])
            self._interpreter.invoke()
            for index in wanted:
                found[index].append(self._interpreter.get_tensor(index))
        return {
            index: dequantised(np.concatenate(parts), self._tensors[index])
            for index, parts in found.items()
        }

    def of_one_sample(self, index: int) -> bool:
        """Whether a tensor's first axis is a batch of one sample."""
        shape = self._tensors[index]["shape"]
        return len(shape) > 1 and shape[0] == 1

    def is_real(self, index: int) -> bool:
        """Whether a tensor holds real numbers, not booleans, indices or sizes."""
        return stands_for_numbers(self._tensors[index])

    def _read_steps(self) -> Iterable[FileStep]:
        depends = {self.input}
        for step in self._interpreter._get_ops_details():
            inputs = [int(i) for i in step["inputs"] if i >= 0]
            live = tuple(i for i in inputs if i in depends)
            output, *others = (int(i) for i in step["outputs"])
            if not live:  # it computes a constant, such as dequantised 8-bit weights
                if inputs:
                    self._made_of[output] = inputs[0]
                continue
            depends.update((output, *others))
            weights = None
            if step["op_name"] in _AXES:
                constant = [i for i in inputs if i not in depends]
                weights = next((i for i in constant if len(self._tensors[i]["shape"]) > 1), None)
            yield FileStep(step["op_name"], live, output, weights, tuple(others))

    def _read_without_bias(self) -> Iterable[int]:
        """Yield the tensors of layer outputs, also reshaped, to which a bias is added later."""
        readers: dict[int, list[FileStep]] = {}
        for step in self.steps:
            for index in step.inputs:
                readers.setdefault(index, []).append(step)
        for step in self.steps:
            if step.weights is None or step.kind in ("GATHER", "EMBEDDING_LOOKUP"):
                continue
            chain = [step.output]
            while len(after := self._of_values(readers.get(chain[-1], []))) == 1:
                if after[0].kind not in _RESHAPING:
                    if after[0].kind == "ADD" and len(after[0].inputs) == 1:
                        yield from chain
                    break
                chain.append(after[0].output)

    def _of_values(self, steps: list[FileStep]) -> list[FileStep]:
        """Return the steps that compute real numbers, not sizes."""
        return [step for step in steps if self.is_real(step.output)]
