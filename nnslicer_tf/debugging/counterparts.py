"""Counterparts: which values of a compressed model are those of which operations."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from nnslicer_tf.debugging._litert_graph import FileStep, LiteRTGraph
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Synapses, copy_model

CompressedLike: TypeAlias = keras.Model | InstrumentedModel | str | os.PathLike | bytes

_EXAMPLES = 8  # samples by which tensors are recognised
_ROUNDING = 0.05  # relative error of a step that only rounds
_UNRELATED = 0.9  # relative error above which two values have nothing to do with each other


@dataclass(frozen=True)
class Place:
    """A value that both models have.

    Attributes:
        operation: Name of the original's operation that computes it.
        kernel: Name of the kernel that it is computed with; None if it has none of its own.
        tensor: Name of the value in the compressed model.
        stored: How the compressed model stores the kernel, or the value if there is no kernel,
            such as "int8".
        weights: Number of weights of the kernel.
    """

    operation: str
    kernel: str | None
    tensor: str
    stored: str
    weights: int


class Counterpart(ABC):
    """A compressed model whose values are known by the original's operations.

    Attributes:
        places: The values that both models have, in topological order; the input is the first,
            the output the last.
    """

    places: tuple[Place, ...]

    @abstractmethod
    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the compressed model's values: operation of a place → `(samples, …)` float32."""

    @abstractmethod
    def kernels(self) -> dict[str, np.ndarray]:
        """Return the compressed model's weights: kernel name → float32 of the kernel's shape."""


def counterpart_of(im: InstrumentedModel, compressed: CompressedLike, x: np.ndarray) -> Counterpart:
    """Return a compressed model with its values by the original's operations.

    Args:
        im: The original.
        compressed: A Keras model with the original's layers, or the path or content of a LiteRT
            file.
        x: Samples by which values are recognised; the first ones are used.

    Raises:
        InvalidArgumentError: if the models do not correspond; the first layer without a
            counterpart is named.
        CorruptFileError: if a file is damaged.
    """
    if isinstance(compressed, (str, os.PathLike, bytes)):
        return _File(im, LiteRTGraph(compressed), x[:_EXAMPLES])
    if isinstance(compressed, keras.Model):
        if any(getattr(layer, "quantization_mode", None) for layer in compressed.layers):
            return _QuantisedLayers(im, compressed)
        compressed = InstrumentedModel(compressed)
    if isinstance(compressed, InstrumentedModel):
        return _Copy(im, compressed)
    raise InvalidArgumentError(
        "A compressed model must be a Keras model, or the path or bytes of a .tflite file. "
        f"Received: {type(compressed).__name__}"
    )


def weights_twin(im: InstrumentedModel, counterpart: Counterpart) -> keras.Model:
    """Return a copy of the original with the compressed model's weights.

    It computes in floating point: what the compressed model loses by rounding activations, the
    twin keeps.
    """
    twin = copy_model(im.model)
    kernels = InstrumentedModel(twin).kernels
    for name, values in counterpart.kernels().items():
        kernels[name].variable().assign(values)
    return twin


# --- copies of the Keras model -------------------------------------------------------------


class _Copy(Counterpart):
    """A Keras model with the same operations and other weights."""

    def __init__(self, im: InstrumentedModel, other: InstrumentedModel) -> None:
        for operation in im.operations:
            same = other.graph.operations.get(operation.name)
            if same is None or same.shape != operation.shape:
                there = "nothing of this name" if same is None else f"shape {same.shape}"
                raise InvalidArgumentError(
                    f"Operation '{operation.name}' {operation.shape} has no counterpart in the "
                    f"compressed model '{other.model.name}', which has {there}. Compare a model "
                    "with a copy that has its layers."
                )
        self._other = other
        chosen = [o for o in im.operations if _has_weights(o) or o.name == im.output_operations[0]]
        self.places = (
            _input_place(im, im.input_operation, "float32"),
            *(_place(o.name, _kernel_name(o), o.name, "float32", im) for o in chosen),
        )

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        return dict(self._other.capture(x, len(x), [p.operation for p in self.places]))

    def kernels(self) -> dict[str, np.ndarray]:
        return {name: kernel.kernel() for name, kernel in self._other.kernels.items()}


def _has_weights(operation: Operation) -> bool:
    return bool(operation.kernels) or isinstance(operation.params, Affine)


def _kernel_name(operation: Operation) -> str | None:
    return operation.kernels[0].name if operation.kernels else None


def _input_place(im: InstrumentedModel, tensor: str, stored: str) -> Place:
    return Place(im.input_operation, None, tensor, stored, 0)


def _place(
    operation: str, kernel: str | None, tensor: str, stored: str, im: InstrumentedModel
) -> Place:
    weights = im.kernels[kernel].size if kernel else 0
    return Place(operation, kernel, tensor, stored, weights)


class _QuantisedLayers(Counterpart):
    """A copy that `keras.Model.quantize` changed: its layers' outputs are known."""

    def __init__(self, im: InstrumentedModel, model: keras.Model) -> None:
        self._layers = {layer.name: layer for layer in model.layers}
        for operation in im.operations:
            if operation.layer not in self._layers:
                raise InvalidArgumentError(
                    f"Layer '{operation.layer}' has no counterpart in the compressed model "
                    f"'{model.name}'. Compare a model with a copy that has its layers."
                )
        by_layer: dict[str, str] = {}
        for operation in im.operations:
            if operation.kernels:
                by_layer.setdefault(operation.layer, operation.kernels[0].name)
        self._output = im.output_operations[0]
        names = [
            name for name in dict.fromkeys((*by_layer, self._output)) if name in im.graph.operations
        ]
        outputs = [self._layers[name].output for name in names]
        self._values = keras.Model(model.inputs, dict(zip(names, outputs, strict=True)))
        stored = {
            n: getattr(self._layers[n], "quantization_mode", None) or "float32" for n in names
        }
        self.places = (
            _input_place(im, im.input_operation, "float32"),
            *(_place(name, by_layer.get(name), name, stored[name], im) for name in names),
        )
        self._input = im.input_operation

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        found = self._values.predict_on_batch(x)
        return {self._input: x, **{name: np.asarray(value) for name, value in found.items()}}

    def kernels(self) -> dict[str, np.ndarray]:
        found = {}
        for place in self.places:
            if place.kernel is not None:
                layer = self._layers[place.operation]
                kernel = ops.convert_to_numpy(layer.kernel).astype(np.float32)
                scale = getattr(layer, "kernel_scale", None)
                found[place.kernel] = (
                    kernel / ops.convert_to_numpy(scale) if scale is not None else kernel
                )
        return found


# --- LiteRT files --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Origin:
    """Where a tensor of a file comes from.

    Attributes:
        places: The operations of the nearest places before it.
        kernels: Number of kernels since them.
    """

    places: frozenset[str]
    kernels: int


class _File(Counterpart):
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
        self._im = im
        tensors = [s.output for s in file.steps if file.of_one_sample(s.output)]
        self._found = _Recognition(im, file, file.run(x, [file.input, *tensors])).found
        self._check(file)
        order = {name: i for i, name in enumerate(im.graph.operations)}
        stored = file.stored(file.input)
        places = [_input_place(im, file.tensor_name(file.input), stored)]
        for name, (step, kernel) in sorted(self._found.items(), key=lambda item: order[item[0]]):
            tensor = file.tensor_name(step.output)
            stored = file.stored(step.output if step.weights is None else step.weights)
            places.append(_place(name, kernel, tensor, stored, im))
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
