"""Copies of a Keras model whose weights were pruned, rounded or quantised."""

import keras
import numpy as np
from keras import ops

from nnslicer_tf.debugging.places import Counterpart, input_places, place_of
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Affine, InstrumentedModel, copy_model

_ROUNDING = 0.05  # relative error of sums allowed for rounding inputs to 8 bits


class Copy(Counterpart):
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
                    "with a copy that has its layers."
                )
            # A copy that rounds differently from the original would go unnoticed.
            own, other_dtype = (
                getattr(o.keras_layer, "compute_dtype", None) for o in (operation, same)
            )
            if own != other_dtype:
                raise InvalidArgumentError(
                    f"Layer '{operation.layer}' computes in {own} in the original and in "
                    f"{other_dtype} in the copy. Keras models are compared in float32, without the "
                    "rounding of mixed precision, so that nothing of it would be seen. Compare a "
                    "LiteRT file of 16 bits instead."
                )
        self._other = other
        self._input = im.input_operation
        chosen = [
            o
            for o in im.operations
            if o.kernels or isinstance(o.params, Affine) or o.name == im.output_operations[0]
        ]
        kernels = [o.kernels[0].name if o.kernels else None for o in chosen]
        self.places = (
            *input_places(im, im.input_operation, "float32"),
            *(
                place_of(o.name, kernel, o.name, "float32", im)
                for o, kernel in zip(chosen, kernels, strict=True)
            ),
        )

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        layers = [p.operation for p in self.places if p.operation != self._input]
        return {self._input: x, **self._other.capture(x, len(x), layers)}

    def kernels(self) -> dict[str, np.ndarray]:
        return {name: kernel.kernel() for name, kernel in self._other.kernels.items()}

    def twin(self, im: InstrumentedModel) -> keras.Model:
        """Return a copy with all of its weights."""
        return copy_model(self._other.model)


class QuantisedLayers(Counterpart):
    """A copy quantised by `keras.Model.quantize`, whose layer outputs are known."""

    def __init__(self, im: InstrumentedModel, model: keras.Model) -> None:
        self._im = im
        self._layers = {layer.name: layer for layer in model.layers}
        kernels: dict[str, str | None] = {}  # for each layer that has some, and for the output
        for operation in im.operations:
            if operation.kind == "input":  # not a layer of a Sequential model
                continue
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
                place_of(
                    name,
                    kernel,
                    name,
                    getattr(self._layers[name], "quantization_mode", None) or "float32",
                    im,
                )
                for name, kernel in kernels.items()
            ),
        )

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        found = self._values.predict_on_batch(x)
        return {self._input: x, **{name: np.asarray(value) for name, value in found.items()}}

    def kernels(self) -> dict[str, np.ndarray]:
        twin = InstrumentedModel(self.twin(self._im))
        return {name: kernel.kernel() for name, kernel in twin.kernels.items()}

    def twin(self, im: InstrumentedModel) -> keras.Model:
        """Return a copy of the original with all weights of the layers, dequantised.

        Raises:
            InvalidArgumentError: if a layer is quantised in an unsupported way.
        """
        twin = copy_model(im.model)
        for layer in twin.layers:
            own = self._layers.get(layer.name)
            if own is not None:
                quantised = getattr(own, "quantization_mode", None)
                layer.set_weights(_dequantised(own) if quantised else own.get_weights())
        return twin


def _dequantised(layer: keras.layers.Layer) -> list[np.ndarray]:
    """Return the kernel that a quantised Dense layer represents, and its bias.

    Raises:
        InvalidArgumentError: if it is another layer, or does not compute with this kernel.
    """
    mode = layer.quantization_mode
    if type(layer) is not keras.layers.Dense or mode not in ("int8", "int4"):
        raise InvalidArgumentError(
            f"Layer '{layer.name}' is a {type(layer).__name__} that was quantised in the mode "
            f"{mode!r}. Only Dense layers in the modes 'int8' and 'int4' can be brought back to "
            "floating point; its outputs can be compared nevertheless."
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
    apart = np.linalg.norm(ops.convert_to_numpy(layer(x)) - expected)
    if not apart <= _ROUNDING * np.linalg.norm(sums):
        raise InvalidArgumentError(
            f"Layer '{layer.name}' does not compute with its dequantised kernel: it stores it in a "
            f"way that is not known here (mode {layer.quantization_mode!r}, Keras "
            f"{keras.__version__}). Its outputs can be compared nevertheless."
        )
    return weights
