"""Copies of a Keras model whose weights were pruned, rounded or quantised."""

import keras
import numpy as np
from keras import ops

from nnslicer_tf.debugging.places import Counterpart, input_places, place_of
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation


class Copy(Counterpart):
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
            *input_places(im, im.input_operation, "float32"),
            *(place_of(o.name, _kernel_name(o), o.name, "float32", im) for o in chosen),
        )

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        return dict(self._other.capture(x, len(x), [p.operation for p in self.places]))

    def kernels(self) -> dict[str, np.ndarray]:
        return {name: kernel.kernel() for name, kernel in self._other.kernels.items()}


def _has_weights(operation: Operation) -> bool:
    return bool(operation.kernels) or isinstance(operation.params, Affine)


def _kernel_name(operation: Operation) -> str | None:
    return operation.kernels[0].name if operation.kernels else None


class QuantisedLayers(Counterpart):
    """A copy that `keras.Model.quantize` changed: its layers' outputs are known."""

    def __init__(self, im: InstrumentedModel, model: keras.Model) -> None:
        self._layers = {layer.name: layer for layer in model.layers}
        kernels: dict[str, str | None] = {}  # of each layer that has some, and of the output
        for operation in im.operations:
            if operation.layer not in self._layers:
                raise InvalidArgumentError(
                    f"Layer '{operation.layer}' has no counterpart in the compressed model "
                    f"'{model.name}'. Compare a model with a copy that has its layers."
                )
            if operation.kernels:
                kernels.setdefault(operation.layer, operation.kernels[0].name)
        kernels.setdefault(im.output_operations[0], None)
        outputs = {name: self._layers[name].output for name in kernels}
        self._values = keras.Model(model.inputs, outputs)
        self._input = im.input_operation
        self.places = (
            *input_places(im, self._input, "float32"),
            *(
                place_of(name, kernel, name, _stored(self._layers[name]), im)
                for name, kernel in kernels.items()
            ),
        )

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        found = self._values.predict_on_batch(x)
        return {self._input: x, **{name: np.asarray(value) for name, value in found.items()}}

    def kernels(self) -> dict[str, np.ndarray]:
        found = {}
        for place in self.places:
            if place.kernel is not None:
                layer = self._layers[place.operation]
                kernel = ops.convert_to_numpy(layer.kernel).astype(np.float32)
                if getattr(layer, "kernel_scale", None) is not None:
                    kernel = kernel / ops.convert_to_numpy(layer.kernel_scale)
                found[place.kernel] = kernel
        return found


def _stored(layer: keras.layers.Layer) -> str:
    return getattr(layer, "quantization_mode", None) or "float32"
