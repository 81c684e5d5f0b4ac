"""DeepArc, the layer-level baseline (Ren et al., ICSE 2023; NeuSemSlice, section 2.2).

A layer whose embedding landscape is almost that of the layer before it is redundant and is
removed. If its output has another shape than its input, a sewing layer takes its place: a 1×1
convolution (a dense layer for vectors), fitted to the removed layer's output by least squares.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, Operation, instrumented
from nnslicer_tf.instrument.copies import rebuild
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.semantic.metrics import mask_names
from nnslicer_tf.semantic.neurons import (
    HeadLayer,
    NeuronLayer,
    RecurrentLayer,
    neuron_layers,
    output_layer,
)
from nnslicer_tf.semantic.similarity import landscape, similarity

_NOT_SEWN = (HeadLayer, RecurrentLayer)


def layer_similarities(
    im: InstrumentedModel, x: DataLike, batch_size: int = 256
) -> dict[str, float]:
    """Return each layer's similarity with the layer before it (Equation 2).

    Padding counts as zeros.

    Args:
        im: A classifier.
        x: Samples `(samples, *input shape)`; the landscapes are samples × samples, so a few
            hundred to a few thousand.
        batch_size: Samples in one pass.

    Returns:
        Layer → similarity, in topological order: the layers with neurons and the output
        layer, except for the first, which has no predecessor.
    """
    found = {}
    before = None
    for layer in (*neuron_layers(im).values(), output_layer(im)):
        values = im.capture(x, batch_size, of=[layer.value, *mask_names({layer.name: layer})])
        current = landscape(layer.of_data(values[layer.value], values))
        if before is not None:
            found[layer.name] = similarity(current, before)
        before = current
    return found


def redundant_layers(similarities: Mapping[str, float], threshold: float = 0.99) -> list[str]:
    """Return the layers whose similarity with the layer before exceeds a threshold.

    Args:
        similarities: The result of `layer_similarities`.
        threshold: In (0, 1].

    Raises:
        InvalidArgumentError: if the threshold is out of range.
    """
    if not 0 < threshold <= 1:
        raise InvalidArgumentError(f"threshold must be in (0, 1]. Received: {threshold!r}")
    return [name for name, value in similarities.items() if value > threshold]


def removable_layers(im: InstrumentedModel) -> list[str]:
    """Return the hidden layers that `remove_layers` can remove, in topological order.

    Args:
        im: A classifier.
    """
    found = []
    for name, layer in _layers(im).items():
        first = layer.chain[0]
        if first.input_shapes[0] == first.shape or _is_sewn(first):
            found.append(name)
    return found


def remove_layers(
    model: ModelLike, layers: Iterable[str], x: DataLike, batch_size: int = 256
) -> keras.Model:
    """Return a copy of a model without some of its hidden layers.

    A convolution or dense layer is removed with its batch normalisation; the activation stays,
    even if it is part of the layer.

    Args:
        model: A model without nested ones; the copy of a subclassed one is functional.
        layers: Names of hidden layers.
        x: Samples `(samples, *input shape)` on which sewing layers are fitted.
        batch_size: Samples in one pass.

    Raises:
        InvalidArgumentError: if the model has no such hidden layer.
        UnsupportedLayerError: if a layer of another output shape is neither a dense layer
            nor a convolution whose strides alone change its positions; see `removable_layers`.
    """
    im = instrumented(model)
    known = _layers(im)
    replaced: dict[str, keras.layers.Layer] = {}
    weights: dict[str, list[np.ndarray]] = {}
    for name in layers:
        check_name("hidden layer", name, known)
        first, last = _affine_part(known[name])
        for operation in known[name].chain:
            if operation.kind == "scale":
                replaced[operation.layer] = keras.layers.Identity(name=operation.layer)
        if first.input_shapes[0] == first.shape:
            replaced[name] = keras.layers.Activation(_activation(first), name=name)
            continue
        replaced[name] = _sewing_layer(first)
        weights[name] = _fitted(im, first, last, x, batch_size)
    original = im.functional
    copy = rebuild(
        original, replacements={id(original.get_layer(k)): new for k, new in replaced.items()}
    )
    for name, values in weights.items():
        replaced[name].set_weights(values)
    return copy


def _layers(im: InstrumentedModel) -> dict[str, NeuronLayer]:
    """Return the hidden layers that are neither heads nor recurrent."""
    return {k: v for k, v in neuron_layers(im).items() if not isinstance(v, _NOT_SEWN)}


def _affine_part(layer: NeuronLayer) -> tuple[Operation, Operation]:
    """Return a layer's weighted sum, and the normalisation after it (or the sum again)."""
    first = last = layer.chain[0]
    for operation in layer.chain[1:]:
        if operation.kind != "scale":
            break
        last = operation
    return first, last


def _activation(operation: Operation) -> Any:
    """Return the layer's built-in activation, linear if it has none."""
    return getattr(operation.keras_layer, "activation", None) or "linear"


def _sewing_layer(operation: Operation) -> keras.layers.Layer:
    units = operation.shape[-1]
    if len(operation.shape) == 1:
        return keras.layers.Dense(units, _activation(operation), name=operation.layer)
    if not _is_sewn(operation):
        raise UnsupportedLayerError(
            f"Layer '{operation.layer}' turns {operation.input_shapes[0]} into {operation.shape}, "
            "which a 1×1 convolution with its strides does not. Do not remove this layer."
        )
    return keras.layers.Conv2D(
        units, 1, _strides(operation), activation=_activation(operation), name=operation.layer
    )


def _is_sewn(operation: Operation) -> bool:
    """Whether a sewing layer maps the operation's input to its output's shape."""
    if len(operation.shape) == 1:
        return True
    return len(operation.shape) == 3 and operation.shape[:-1] == _strided(operation)


def _strides(operation: Operation) -> tuple[int, ...]:
    return tuple(getattr(operation.keras_layer, "strides", (1,) * (len(operation.shape) - 1)))


def _strided(operation: Operation) -> tuple[int, ...]:
    """Return the output positions of a padded convolution with the operation's strides."""
    extents = zip(operation.input_shapes[0][:-1], _strides(operation), strict=True)
    return tuple(-(-extent // stride) for extent, stride in extents)


def _fitted(
    im: InstrumentedModel, first: Operation, last: Operation, x: DataLike, batch_size: int
) -> list[np.ndarray]:
    """Return the kernel and bias that best map the layer's inputs to its outputs."""
    source = first.inputs[0]
    width = first.input_shapes[0][-1]
    steps = tuple(slice(None, None, s) for s in _strides(first))
    normal = np.zeros((width + 1, width + 1))
    right = np.zeros((width + 1, first.shape[-1]))
    for values in im.capture_batches(x, batch_size, of=[source, last.name]):
        inputs = values[source][(slice(None), *steps)].reshape(-1, width).astype(np.float64)
        inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        normal += inputs.T @ inputs
        right += inputs.T @ values[last.name].reshape(-1, first.shape[-1])
    solution = np.linalg.lstsq(normal, right, rcond=1e-10)[0]
    kernel = solution[:-1] if len(first.shape) == 1 else solution[None, None, :-1]
    return [kernel.astype(np.float32), solution[-1].astype(np.float32)]
