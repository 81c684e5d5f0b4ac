"""Masked copies of models in which masked synapses still contribute their mean.

A weighted sum y = W·x + b that keeps only the synapses W' computes W'·(x − x̄) + ȳ, where x̄ and ȳ
are the means of its input and output; the paper's program prunes in this way. Each layer with
masked synapses is followed by a `Normalization` that adds the constant, so that the copy consists
of ordinary Keras layers.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.copies import inputs_like
from nnslicer_tf.instrument.model import InstrumentedModel


def masked_with_means(
    im: InstrumentedModel,
    keep: Mapping[str, np.ndarray],
    means: Mapping[str, np.ndarray],
    configs: Mapping[int, dict[str, Any]] | None = None,
) -> keras.Model:
    """Return a copy of a model in which masked synapses still contribute their mean.

    Args:
        im: The model. The copy is functional; a fused activation becomes a separate layer.
        keep: Kernel name → bool array of the kernel's shape, false where weights become zero.
        means: Operation name → mean values `(*operation shape)`, such as `Profile.means`.
        configs: Id of a layer → further entries of its config in the copy.

    Raises:
        UnsupportedLayerError: if a masked kernel is in a nested model.
    """
    inputs = _inputs_by_call(im)
    _check_not_nested(im, keep)
    kernels = im.kernels
    masked = {
        id(kernels[name].variable()): np.where(mask, kernels[name].kernel(), 0)
        for name, mask in keep.items()
    }
    originals: dict[int, keras.Layer] = {}
    calls: dict[int, int] = {}

    def clone(layer: Any) -> Any:
        if not isinstance(layer, keras.layers.Layer):  # `x + y` has nothing to copy
            return layer
        config = {**layer.get_config(), **(configs or {}).get(id(layer), {})}
        if id(layer) in inputs:
            config["activation"] = None
        new = type(layer).from_config(config)
        originals[id(new)] = layer
        return new

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        original = originals.get(id(layer))
        if original is None:
            return y
        _assign(layer, original, {})
        if id(original) not in inputs:
            return y
        index = calls[id(layer)] = calls.get(id(layer), -1) + 1
        mean = means[inputs[id(original)][index]][None].astype(np.float32)
        full = keras.ops.convert_to_numpy(layer(mean))
        _assign(layer, original, masked)
        offset = (full - keras.ops.convert_to_numpy(layer(mean)))[0]
        name = f"{original.name}_{index}" if index else original.name
        if offset.any():
            y = _constant(offset, f"{name}_mean")(y)
        if original.activation is not keras.activations.linear:
            y = keras.layers.Activation(original.activation, name=f"{name}_activation")(y)
        return y

    model = im.functional
    if isinstance(model, keras.Sequential):
        model = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    return keras.models.clone_model(
        model,
        # The constants have these shapes.
        input_tensors=inputs_like(model, list(im.input_shapes.values())),
        clone_function=clone,
        call_function=call,
    )


def _inputs_by_call(im: InstrumentedModel) -> dict[int, list[str]]:
    """Map the id of each layer with a kernel to the operations that its calls read."""
    inputs: dict[int, list[str]] = {}
    for operation in im.operations:
        # A separable convolution is two weighted sums: the second reads the first.
        if operation.kind == "weighted_sum" and not operation.params.name.endswith("/pointwise"):
            inputs.setdefault(id(operation.keras_layer), []).append(operation.inputs[0])
    return inputs


def _check_not_nested(im: InstrumentedModel, keep: Mapping[str, np.ndarray]) -> None:
    for operation in im.operations:
        is_masked = operation.kind == "weighted_sum" and operation.params.name in keep
        if is_masked and operation.layer != operation.keras_layer.name:
            raise UnsupportedLayerError(
                f"Kernel '{operation.params.name}' is in a nested model, where means cannot be "
                "handed on. Build the model without nesting, or leave the means out."
            )
        names = {kernel.name for kernel in operation.kernels} & set(keep)
        if names and not hasattr(operation.keras_layer, "activation"):
            raise UnsupportedLayerError(
                f"Kernel '{min(names)}' is of a layer ({type(operation.keras_layer).__name__}) "
                "after which means cannot be handed on: only layers with one kernel and an "
                "activation are. Leave the means out."
            )


def _assign(new: keras.Layer, original: keras.Layer, values: Mapping[int, np.ndarray]) -> None:
    """Set a copied layer's variables to the original's, or to the values given for them."""
    for variable, target in zip(original.variables, new.variables, strict=True):
        target.assign(values.get(id(variable), variable))


def _constant(offset: np.ndarray, name: str) -> keras.Layer:
    """Return a layer that adds a constant `(*shape)`."""
    axes = tuple(range(1, offset.ndim + 1))
    return keras.layers.Normalization(
        axis=axes, mean=-offset, variance=np.ones_like(offset), name=name
    )
