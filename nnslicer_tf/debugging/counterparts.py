"""Counterparts: a compressed model's values, mapped to the operations of its original."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops
from typing_extensions import TypeAliasType

from nnslicer_tf._checks import with_article
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Affine, InstrumentedModel, copy_model

CompressedLike = TypeAliasType(
    "CompressedLike", keras.Model | InstrumentedModel | str | os.PathLike | bytes
)

_ROUNDING = 0.05  # relative error of sums allowed for rounding inputs to 8 bits


@dataclass(frozen=True)
class Place:
    """A value that both models have."""

    operation: str  # name of the original's operation that computes it
    kernel: str | None  # name of that operation's kernel, if any
    tensor: str  # name of the value in the compressed model, or of its product with the kernel
    stored: str  # storage of the kernel, or else of the value, such as "int8"
    weights: int  # number of weights of the kernel


class Counterpart(ABC):
    """A compressed model whose values are mapped to the original's operations.

    Attributes:
        im: The original.
        places: The values that both models have, in topological order, from the input (unless it
            consists of tokens, which are not rounded) to the output.
    """

    im: InstrumentedModel
    places: tuple[Place, ...]
    _arguments: tuple

    def __new__(cls, *arguments: Any) -> "Counterpart":
        """Keep the arguments, from which a pickled counterpart is made again."""
        self = super().__new__(cls)
        self._arguments = arguments
        return self

    def __reduce__(self) -> tuple:
        return type(self), self._arguments

    @abstractmethod
    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the compressed model's values: operation of a place → `(samples, …)` float32."""

    @abstractmethod
    def kernels(self) -> dict[str, np.ndarray]:
        """Return the compressed model's weights: kernel name → float32 of the kernel's shape."""

    def twin(self) -> keras.Model:
        """Return a copy of the original with the compressed model's weights, in floating point.

        Of a file it has only the kernels: biases and normalisations, which a file may fold into the
        kernels, are the original's. Activations are not rounded.
        """
        twin = self.im.copy()
        for name, values in self.kernels().items():
            twin.kernels[name].variable().assign(values)
        return twin.model

    def _set_places(self, places: Iterable[tuple[str, str | None, str, str]]) -> None:
        """Set the places from all their fields but the weights; leave out an input of tokens."""
        im = self.im
        self.places = tuple(
            Place(name, kernel, tensor, stored, im.kernels[kernel].size if kernel else 0)
            for name, kernel, tensor, stored in places
            if name != im.input_operation or im.graph.vocabulary(name) is None
        )


def counterpart_of(im: InstrumentedModel, compressed: CompressedLike, x: np.ndarray) -> Counterpart:
    """Map a compressed model's values to the original's operations.

    Args:
        im: The original.
        compressed: A Keras model with the original's layers, or a LiteRT file's path or content.
        x: Samples to recognise values by; only the first ones are used.

    Raises InvalidArgumentError if a layer, named in the message, has no counterpart;
    CorruptFileError if a file is damaged.
    """
    if isinstance(compressed, (str, os.PathLike, bytes)):
        from nnslicer_tf.debugging.litert import LiteRTCounterpart

        return LiteRTCounterpart(im, compressed, x)
    if isinstance(compressed, keras.Model):
        if any(getattr(layer, "quantization_mode", None) for layer in compressed.layers):
            return _QuantisedLayers(im, compressed)
        compressed = im.like(compressed)
    if isinstance(compressed, InstrumentedModel):
        return _Copy(im, compressed)
    raise InvalidArgumentError(
        "A compressed model must be a Keras model, or the path or bytes of a .tflite file. "
        f"Received: {type(compressed).__name__}"
    )


class _Copy(Counterpart):
    """A Keras model with the same operations and other weights."""

    def __init__(self, im: InstrumentedModel, other: InstrumentedModel) -> None:
        # Keras may name the input of a copy differently.
        inputs = dict(zip(im.graph.inputs, other.graph.inputs, strict=False))
        for operation in im.operations:
            same = other.graph.operations.get(inputs.get(operation.name, operation.name))
            if same is None or same.shape != operation.shape:
                there = "nothing of this name" if same is None else f"shape {same.shape}"
                raise InvalidArgumentError(
                    f"Operation '{operation.name}' {operation.shape} has no counterpart in the "
                    f"compressed model '{other.model.name}', which has {there}. Compare a model "
                    "with a copy that has the same layers."
                )
            # A copy that rounds differently from the original would go unnoticed.
            layers = operation.keras_layer, same.keras_layer
            dtype, other_dtype = (getattr(layer, "compute_dtype", None) for layer in layers)
            if dtype != other_dtype:
                raise InvalidArgumentError(
                    f"Layer '{operation.layer}' computes in {dtype} in the original and in "
                    f"{other_dtype} in the copy. Keras models are compared in float32, which would "
                    "hide the rounding of mixed precision. Compare a 16-bit LiteRT file instead."
                )
        self.im, self._other = im, other
        ends = (im.input_operation, im.output_operations[0])
        self._set_places(
            (o.name, o.kernels[0].name if o.kernels else None, o.name, "float32")
            for o in im.operations
            if o.kernels or isinstance(o.params, Affine) or o.name in ends
        )

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        name = self.im.input_operation
        layers = [place.operation for place in self.places if place.operation != name]
        return {name: x, **self._other.capture(x, len(x), layers)}

    def kernels(self) -> dict[str, np.ndarray]:
        return {name: kernel.kernel() for name, kernel in self._other.kernels.items()}

    def twin(self) -> keras.Model:
        return copy_model(self._other.model)


class _QuantisedLayers(Counterpart):
    """A copy quantised by `keras.Model.quantize`, whose layer outputs are known."""

    def __init__(self, im: InstrumentedModel, model: keras.Model) -> None:
        self.im = im
        self._layers = {layer.name: layer for layer in model.layers}
        kernels: dict[str, str | None] = {}  # for each layer that has some, and for the output
        for operation in im.operations:
            if operation.kind == "input":  # not a layer of a Sequential model
                continue
            if operation.layer not in self._layers:
                raise InvalidArgumentError(
                    f"Layer '{operation.layer}' has no counterpart in the compressed model "
                    f"'{model.name}'. Compare a model with a copy that has the same layers."
                )
            if operation.kernels:
                kernels.setdefault(operation.layer, operation.kernels[0].name)
        kernels.setdefault(im.output_operations[0], None)
        outputs = {name: self._layers[name].output for name in kernels}
        self._values = keras.Model(model.inputs, outputs)
        kernels = {im.input_operation: None, **kernels}
        modes = {n: getattr(layer, "quantization_mode", None) for n, layer in self._layers.items()}
        self._set_places((n, k, n, modes.get(n) or "float32") for n, k in kernels.items())

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        return {self.im.input_operation: x, **self._values.predict_on_batch(x)}

    def kernels(self) -> dict[str, np.ndarray]:
        return {n: kernel.kernel() for n, kernel in self.im.like(self.twin()).kernels.items()}

    def twin(self) -> keras.Model:
        """Return a copy of the original with all weights of the layers, dequantised."""
        twin = self.im.copy().model
        for layer in twin.layers:
            same = self._layers.get(layer.name)
            if same is not None:
                mode = getattr(same, "quantization_mode", None)
                layer.set_weights(_dequantised(same) if mode else same.get_weights())
        return twin


def _dequantised(layer: keras.layers.Layer) -> list[np.ndarray]:
    """Return the kernel that a quantised Dense layer represents, and its bias."""
    mode = layer.quantization_mode
    if type(layer) is not keras.layers.Dense or mode not in ("int8", "int4"):
        raise InvalidArgumentError(
            f"Layer '{layer.name}' is {with_article(type(layer).__name__)} quantised in the mode "
            f"{mode!r}. Only Dense layers in the modes 'int8' and 'int4' can be dequantised; its "
            "outputs can be compared nevertheless."
        )
    stored = ops.convert_to_numpy(layer.kernel).astype(np.float32)
    scale = ops.convert_to_numpy(layer.kernel_scale)
    if getattr(layer, "kernel_zero", None) is None:
        kernel = stored / scale
    else:  # each group of inputs has a scale, which multiplies, and a zero point
        group = ops.convert_to_numpy(layer.g_idx).astype(int)
        kernel = (stored - ops.convert_to_numpy(layer.kernel_zero)[group]) * scale[group]
    weights = [kernel] if layer.bias is None else [kernel, ops.convert_to_numpy(layer.bias)]
    # Compare the layer's outputs with those of its dequantised weights, on random inputs.
    x = np.random.default_rng(0).normal(size=(16, len(kernel))).astype(np.float32)
    sums = x @ kernel + sum(weights[1:])
    expected = ops.convert_to_numpy(layer.activation(ops.convert_to_tensor(sums)))
    error = np.linalg.norm(ops.convert_to_numpy(layer(x)) - expected)
    if not error <= _ROUNDING * np.linalg.norm(sums):
        raise InvalidArgumentError(
            f"Layer '{layer.name}' does not compute with its dequantised kernel: its storage (mode "
            f"{mode!r}, Keras {keras.__version__}) is not known here."
        )
    return weights
