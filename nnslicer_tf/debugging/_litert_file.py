"""LiteRT files whose tensors are recognised as values of a Keras model's operations."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.debugging._litert_graph import FileStep, LiteRTGraph
from nnslicer_tf.debugging.places import Counterpart, input_place, place_of
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Synapses

_EXAMPLES = 8  # samples by which tensors are recognised
_ROUNDING = 0.2  # relative error of a step that only rounds
_UNRELATED = 0.9  # relative error above which two values have nothing to do with each other


@dataclass(frozen=True)
class _Origin:
    """The origin of a tensor of a file.

    Attributes:
        places: The operations of the nearest places before it.
        kernels: Number of kernels since them.
    """

    places: frozenset[str]
    kernels: int


class LiteRTFile(Counterpart):
    """A LiteRT file.

    Its steps are followed in their order. A step computes the operation behind the step's inputs
    whose value, computed in floating point from the file's own inputs of the step, is nearest. So
    an error made at one layer does not hinder the recognition of those behind it.
    """

    def __init__(self, im: InstrumentedModel, file: LiteRTGraph, x: np.ndarray) -> None:
        if file.of_one_sample(file.input):
            self._file = file
        else:
            raise InvalidArgumentError(f"The TFLite model in {file.name} takes no single samples.")
        self._im, x = im, x[:_EXAMPLES]
        tensors = [s.output for s in file.steps if file.of_one_sample(s.output)]
        self._found = _Recognition(im, file, file.run(x, [file.input, *tensors])).found
        self._check(file)
        order = {name: i for i, name in enumerate(im.graph.operations)}
        stored = file.stored(file.input)
        places = [input_place(im, file.tensor_name(file.input), stored)]
        for name, (step, kernel) in sorted(self._found.items(), key=lambda item: order[item[0]]):
            tensor = file.tensor_name(step.output)
            stored = file.stored(step.output if step.weights is None else step.weights)
            places.append(place_of(name, kernel, tensor, stored, im))
        self.places = tuple(places)

    def _check(self, file: LiteRTGraph) -> None:
        """Refuse a file in which a kernel, or the output, has no counterpart."""
        there = {kernel for _, kernel in self._found.values()}
        for name, kernel in self._im.kernels.items():
            if name not in there:
                layers = [file.tensor_name(s.output) for s in file.steps if s.weights is not None]
                raise InvalidArgumentError(
                    f"Layer '{name}' (kernel {kernel.shape}) has no counterpart in the TFLite "
                    f"model in {file.name}, whose layers with weights are: {', '.join(layers)}. "
                    "Compare a model with the file that was made of it."
                )
        output = self._im.output_operations[0]
        if output not in self._found:
            raise InvalidArgumentError(
                f"The output '{output}' has no counterpart in the TFLite model in {file.name}, "
                f"whose output is '{file.tensor_name(file.output)}'. If one of them ends in a "
                "softmax and the other does not, use dflare.with_softmax."
            )

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        tensors = {self._im.input_operation: self._file.input}
        tensors |= {name: step.output for name, (step, _) in self._found.items()}
        values = self._file.run(x, set(tensors.values()))
        return {
            name: values[index].reshape(len(x), *self._im[name].shape)
            for name, index in tensors.items()
        }

    def kernels(self) -> dict[str, np.ndarray]:
        found = {}
        for name, (step, kernel) in self._found.items():
            if kernel is not None:
                values = self._file.kernel(step).reshape(self._im.kernels[kernel].shape)
                found[kernel] = _unfolded(self._im, name, kernel, values)
        return found


class _Recognition:
    """The search for the operation that each step of a file computes.

    Attributes:
        found: Operation → the step, and the name of the kernel that it is computed with.
    """

    def __init__(
        self, im: InstrumentedModel, file: LiteRTGraph, values: Mapping[int, np.ndarray]
    ) -> None:
        self._im = im
        self.found: dict[str, tuple[FileStep, str | None]] = {}
        shape = im.input_shape
        self._known = {im.input_operation: values[file.input].reshape(-1, *shape)}
        origins = {file.input: _Origin(frozenset([im.input_operation]), 0)}
        for step in file.steps:
            before = [origins[i] for i in step.inputs]
            origin = _Origin(
                frozenset().union(*(one.places for one in before)),
                max(one.kernels for one in before) + (step.weights is not None),
            )
            origins[step.output] = origin
            # A product with a constant is the first half of a normalisation.
            whole = step.kind not in ("QUANTIZE", "DEQUANTIZE") and (
                step.kind != "MUL" or len(step.inputs) > 1
            )
            if whole and step.output in values:
                name = self._nearest(origin, step, values[step.output])
                if name is not None:
                    origins[step.output] = _Origin(frozenset([name]), 0)

    def _nearest(self, origin: _Origin, step: FileStep, value: np.ndarray) -> str | None:
        """Return the operation whose value is nearest to a tensor, if one is near; keep it."""
        best, least = None, _UNRELATED if origin.kernels else _ROUNDING
        for operation, computed, kernel in self._behind(origin):
            if computed[0].size == value[0].size and _fits(operation.shape, value.shape[1:]):
                error = _relative(value.reshape(computed.shape) - computed, computed)
                if error < least:
                    best, least = (operation.name, kernel), error
        if best is None:
            return None
        name, kernel = best
        self.found[name] = (step, kernel)
        self._known[name] = value.reshape(-1, *self._im[name].shape)
        return name

    def _behind(self, origin: _Origin) -> Iterator[tuple[Operation, np.ndarray, str | None]]:
        """Yield operations behind places, with their values and the kernel that they have used."""
        values: dict[str, Any] = {name: self._known[name] for name in origin.places}
        kernels: dict[str, tuple[str, ...]] = dict.fromkeys(values, ())
        for operation in self._im.operations:
            inputs = operation.inputs
            if not inputs or operation.name in self._known or not set(inputs) <= set(values):
                continue
            own = tuple(kernel.name for kernel in operation.kernels)
            used = own + tuple(k for i in dict.fromkeys(inputs) for k in kernels[i])
            if len(used) > origin.kernels or operation.kind == "recurrence":
                continue
            tensors = (ops.convert_to_tensor(values[i]) for i in inputs)
            values[operation.name] = ops.convert_to_numpy(operation.compute(*tensors))
            kernels[operation.name] = used
            if len(used) == origin.kernels:
                yield operation, values[operation.name], used[0] if used else None


def _fits(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes are the same but for axes of size 1."""
    return [n for n in shape if n > 1] == [n for n in other if n > 1]


def _relative(difference: np.ndarray, values: np.ndarray) -> float:
    """Return the size of a difference beside that of the values."""
    size = float(np.linalg.norm(values))
    return float(np.linalg.norm(difference)) / size if size else np.inf


def _unfolded(im: InstrumentedModel, place: str, kernel: str, values: np.ndarray) -> np.ndarray:
    """Return weights without the factors of a normalisation that a converter put into them."""
    synapses: Synapses = im.kernels[kernel]
    own = synapses.kernel()
    between = im.graph.between([o.name for o in im.operations if synapses in o.kernels], [place])
    affine = [o.params for o in between if isinstance(o.params, Affine)]
    if not affine:
        return values
    factor = np.broadcast_to(affine[0].read()[0].ravel(), synapses.matrix().shape[-1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        matrix = np.where(factor == 0, synapses.matrix(), synapses.from_kernel(values) / factor)
    plain = synapses.to_kernel(matrix).astype(np.float32)
    nearer = np.linalg.norm(plain - own) < np.linalg.norm(values - own)
    return plain if nearer else values
