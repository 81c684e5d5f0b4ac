"""LiteRT files: their steps, matched in order with operations of the original Keras model.

A step matches the operation, among those after the step's inputs, with the nearest value, computed
in floating point from the file's own inputs of the step, so that errors do not add up.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf._litert import LiteRTModel, dequantised, quantised, stands_for_numbers
from nnslicer_tf.debugging.counterparts import Counterpart
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Synapses

_EXAMPLES = 8  # samples used to recognise tensors
_ROUNDING = 0.2  # relative error of a step that only rounds
_UNRELATED = 0.9  # relative error above which two values are unrelated

_RESHAPING = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
_LOOKUPS = ("GATHER", "EMBEDDING_LOOKUP")
_AXES = {
    "CONV_2D": (1, 2, 3, 0),
    "FULLY_CONNECTED": (1, 0),
    "DEPTHWISE_CONV_2D": (1, 2, 3, 0),
    "TRANSPOSE_CONV": (1, 2, 0, 3),
    "CONV_3D": (0, 1, 2, 3, 4),
    **dict.fromkeys(_LOOKUPS, (0, 1)),
}
"""Step → the axes of its weights in Keras's order."""


@dataclass(frozen=True)
class FileStep:
    """A step of a file that depends on the input."""

    kind: str  # its LiteRT name, such as "CONV_2D"
    inputs: tuple[int, ...]  # indices of the tensors that depend on the input
    output: int  # index of the tensor that it computes
    weights: int | None  # index of its kernel's tensor, if any
    others: tuple[int, ...] = ()  # indices of the other tensors that it computes


class LiteRTGraph:
    """The steps of a LiteRT file, in the order in which they run; `shape` is that of one sample."""

    def __init__(self, model: str | os.PathLike | bytes, shape: tuple[int, ...]) -> None:
        file = LiteRTModel(model, keep_tensors=True)
        file.fit(shape)
        self.name, self._interpreter, self._tensors = file.name, file.interpreter, file.tensors
        self.names = {index: tensor["name"] for index, tensor in file.tensors.items()}
        self.input, self.output = (end["index"] for end in file.ends())
        self._source_of: dict[int, int] = {}  # computed constant → its source
        self._turn = Lock()  # of threads: the interpreter has one set of tensors
        depends, steps = {self.input}, []
        for step in self._interpreter._get_ops_details():
            inputs = [int(i) for i in step["inputs"] if i >= 0]
            live = tuple(i for i in inputs if i in depends)
            output, *others = (int(i) for i in step["outputs"])
            if not live:  # it computes a constant, such as dequantised 8-bit weights
                if inputs:
                    self._source_of[output] = inputs[0]
                continue
            depends.update((output, *others))
            weights = None
            if step["op_name"] in _AXES:
                constant = [i for i in inputs if i not in depends]
                weights = next((i for i in constant if len(self._tensors[i]["shape"]) > 1), None)
            steps.append(FileStep(step["op_name"], live, output, weights, tuple(others)))
        self.steps = tuple(steps)
        # Others compute booleans, indices or sizes.
        self._real = [step for step in steps if stands_for_numbers(self._tensors[step.output])]

    def stored(self, index: int) -> str:
        """Return how a tensor is stored, such as "int8"."""
        return np.dtype(self._tensors[self._source_of.get(index, index)]["dtype"]).name

    def kernel(self, step: FileStep) -> np.ndarray:
        """Return a step's float32 weights, with the axes in Keras's order."""
        assert step.weights is not None
        tensor = self._tensors[step.weights]
        stored = self._interpreter.get_tensor(step.weights)
        zero_points = tensor["quantization_parameters"]["zero_points"]
        if tensor["dtype"] == np.uint8 and not zero_points.any():
            # Files from 2019 declare the signed bytes of dynamic-range weights as unsigned.
            stored = stored.view(np.int8)
        return dequantised(stored, tensor).transpose(_AXES[step.kind]).astype(np.float32)

    def run(self, x: np.ndarray, tensors: Iterable[int]) -> dict[int, np.ndarray]:
        """Run the file; return dequantised tensors `(samples, …)` float32, by index."""
        parts: dict[int, list[np.ndarray]] = {index: [] for index in tensors}
        with self._turn:
            for sample in quantised(x, self._tensors[self.input]):
                self._interpreter.set_tensor(self.input, sample[None])
                self._interpreter.invoke()
                for index, values in parts.items():
                    values.append(self._interpreter.get_tensor(index))
        return {i: dequantised(np.concatenate(v), self._tensors[i]) for i, v in parts.items()}

    def values_of_sample(self) -> list[int]:
        """Return the steps' outputs that are real numbers and have a batch axis."""
        shapes = {step.output: self._tensors[step.output]["shape"] for step in self._real}
        return [output for output, shape in shapes.items() if len(shape) > 1 and shape[0] == 1]

    def without_bias(self) -> set[int]:
        """Return the tensors that are used only to add a constant to them, perhaps reshaped."""
        uses = Counter(index for step in self._real for index in step.inputs)
        tensors: set[int] = set()
        for step in reversed(self._real):
            is_bias = step.kind == "ADD" and len(step.inputs) == 1
            if is_bias or (step.kind in _RESHAPING and step.output in tensors):
                tensors.update(index for index in step.inputs if uses[index] == 1)
        return tensors


@dataclass(frozen=True)
class _Origin:
    places: frozenset[str]  # the operations of the nearest places before it
    kernels: int  # number of kernels since then
    multiplied: FileStep | None = None  # the last step with a kernel since then, if any


@dataclass(frozen=True)
class _Match:
    """The tensor that has an operation's value."""

    output: int
    step: FileStep  # the step that computes it, or that multiplies by its kernel
    kernel: str | None  # name of the kernel, if any
    computed: np.ndarray  # the operation's value in floating point
    error: float  # the tensor's error relative to it


class LiteRTCounterpart(Counterpart):
    """A LiteRT file as the counterpart of a model; the first samples of `x` identify its values."""

    def __init__(
        self, im: InstrumentedModel, model: str | os.PathLike | bytes, x: np.ndarray
    ) -> None:
        self.im, self._file = im, LiteRTGraph(model, x.shape[1:])
        file = self._file
        self._matches = self._recognise(x[:_EXAMPLES])
        self._check()
        order = {name: i for i, name in enumerate(im.graph.operations)}
        places: list[tuple[str, str | None, str, str]]
        places = [(im.input_operation, None, file.names[file.input], file.stored(file.input))]
        for name, match in sorted(self._matches.items(), key=lambda item: order[item[0]]):
            weights = match.step.weights
            stored = file.stored(match.output if weights is None else weights)
            places.append((name, match.kernel, file.names[match.step.output], stored))
        self._set_places(places)

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the file's values: operation of a place → `(samples, …)` float32."""
        tensors = {self.im.input_operation: self._file.input}
        tensors |= {name: match.output for name, match in self._matches.items()}
        values = self._file.run(x, set(tensors.values()))
        shapes = {name: (len(x), *self.im[name].shape) for name in tensors}
        return {name: values[index].reshape(shapes[name]) for name, index in tensors.items()}

    def kernels(self) -> dict[str, np.ndarray]:
        """Return the file's weights: kernel name → float32 of the kernel's shape."""
        kernels = {}
        for name, match in self._matches.items():
            if match.kernel is None:
                continue
            synapses: Synapses = self.im.kernels[match.kernel]
            values = self._file.kernel(match.step).reshape(synapses.shape)
            # Take out the normalisation that a converter may have folded into the weights.
            owners = [o.name for o in self.im.operations if synapses in o.kernels]
            between = self.im.graph.between(owners, [name])
            affine = [o.params for o in between if isinstance(o.params, Affine)]
            if affine:
                original, matrix = synapses.kernel(), synapses.matrix()
                factor = np.broadcast_to(affine[0].read()[0].ravel(), matrix.shape[-1:])
                with np.errstate(divide="ignore", invalid="ignore"):
                    plain = np.where(factor == 0, matrix, synapses.from_kernel(values) / factor)
                unfolded = synapses.to_kernel(plain).astype(np.float32)
                distances = [np.linalg.norm(one - original) for one in (unfolded, values)]
                values = unfolded if distances[0] < distances[1] else values
            kernels[match.kernel] = values
        return kernels

    def _recognise(self, x: np.ndarray) -> dict[str, _Match]:
        """Return the operations that the file's steps compute, with their tensors."""
        im, file, matches = self.im, self._file, dict[str, _Match]()
        values = file.run(x, [file.input, *file.values_of_sample()])
        known = {im.input_operation: values[file.input].reshape(-1, *im.input_shape)}
        names = [o.name for o in im.operations if o.kind == "mask"]
        masks = dict(im.forward(values[file.input], names)) if names else {}
        origins = {file.input: _Origin(frozenset([im.input_operation]), 0)}
        partial = file.without_bias()
        for step in file.steps:
            before = [origins[i] for i in step.inputs]
            multiplied = next((o.multiplied for o in before if o.multiplied is not None), None)
            places = frozenset().union(*(one.places for one in before))
            count = max(one.kernels for one in before) + (step.weights is not None)
            origin = _Origin(places, count, multiplied if step.weights is None else step)
            origins |= dict.fromkeys((step.output, *step.others), origin)
            # A product with a constant may be the first half of a normalisation.
            is_half = step.kind == "MUL" and len(step.inputs) == 1
            if is_half or step.kind in ("QUANTIZE", "DEQUANTIZE"):
                continue
            is_part = origin.kernels and step.kind not in _LOOKUPS and step.output in partial
            if step.output not in values or is_part:
                continue

            # The operation whose value is nearest to the tensor, if one is near.
            value, best = values[step.output], None
            least = _UNRELATED if origin.kernels else _ROUNDING
            for operation, computed, kernel in self._behind(origin, known, masks):
                error = _error(value, operation, computed)
                if error < least:
                    best, least = (operation.name, computed, kernel), error
            for name in origin.places & set(matches):
                # What was taken for an operation's value was a part of it, such as x·γ/σ.
                match = matches[name]
                error = _error(value, im[name], match.computed)
                if error < min(least, match.error):
                    best, least = (name, match.computed, match.kernel), error
            if best is not None:
                name, computed, kernel = best
                multiplied = matches[name].step if name in matches else origin.multiplied
                owner = multiplied if kernel and multiplied else step
                matches[name] = _Match(step.output, owner, kernel, computed, least)
                known[name] = value.reshape(-1, *im[name].shape)
                origins[step.output] = _Origin(frozenset([name]), 0)
        return matches

    def _behind(
        self, origin: _Origin, known: dict[str, np.ndarray], masks: dict[str, np.ndarray]
    ) -> Iterator[tuple[Operation, np.ndarray, str | None]]:
        """Yield operations after places, with their values and kernels."""
        values: dict[str, Any] = masks | {name: known[name] for name in origin.places}
        kernels: dict[str, tuple[str, ...]] = dict.fromkeys(values, ())
        for operation in self.im.operations:
            inputs = operation.inputs
            ready = bool(inputs) and set(inputs) <= set(values)
            if not ready or operation.kind == "mask" or operation.name in known:
                continue
            used = tuple(kernel.name for kernel in operation.kernels)
            used += tuple(k for i in dict.fromkeys(inputs) for k in kernels[i])
            if len(used) > origin.kernels or operation.kind == "recurrence":
                continue
            tensors = (ops.convert_to_tensor(values[i]) for i in inputs)
            values[operation.name] = ops.convert_to_numpy(operation.compute(*tensors))
            kernels[operation.name] = used
            if len(used) == origin.kernels:
                yield operation, values[operation.name], used[0] if used else None

    def _check(self) -> None:
        """Reject a file in which a kernel, or the output, has no counterpart."""
        file, matches = self._file, self._matches
        there = {match.kernel: file.names[match.output] for match in matches.values()}
        missing = [name for name in self.im.kernels if name not in there]
        if missing:
            kernels = ", ".join(f"'{n}' (kernel {self.im.kernels[n].shape})" for n in missing)
            layers = [s for s in file.steps if s.weights is not None]
            free = [s for s in layers if all(m.step is not s for m in matches.values())]
            names = ", ".join(file.names[s.output] for s in free) or "none"
            known = ", ".join(f"'{name}'" for name in there if name is not None) or "none"
            raise InvalidArgumentError(
                f"Layer {kernels} has no counterpart in the TFLite model in {file.name}. Layers "
                f"with one: {known}. Layers of the file that were not recognised: {names}. Compare "
                "a model without recurrent layers with the file converted from it."
            )
        output = self.im.output_operations[0]
        if output not in matches:
            raise InvalidArgumentError(
                f"The output '{output}' has no counterpart in the TFLite model in {file.name}, "
                f"whose output is '{file.names[file.output]}'. If only one of them ends in a "
                "softmax, use dflare.with_softmax."
            )


def _error(value: np.ndarray, operation: Operation, computed: np.ndarray) -> float:
    """Return a tensor's error relative to an operation's value; ∞ if the shapes differ."""
    # Shapes fit if one is the other with some axes split, ignoring axes of size 1.
    shapes = operation.shape, value.shape[1:]
    ends, others = (set(np.cumprod([1, *shape[::-1]]).tolist()) for shape in shapes)
    fits = max(ends) == max(others) and (ends <= others or others <= ends)
    size = float(np.linalg.norm(computed.astype(np.float64)))
    if len(value) != len(computed) or not fits or not size:
        return np.inf
    return float(np.linalg.norm(value.reshape(computed.shape) - computed.astype(np.float64))) / size
