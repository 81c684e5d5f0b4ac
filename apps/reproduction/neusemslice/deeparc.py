"""DeepArc, by layers, which NeuSemSlice is compared with (Ren et al., ICSE 2023; section 2.2).

A layer whose embedding landscape (`landscapes.landscape`) is similar to that of the layer
before it is redundant and is removed. If its output has another shape than its input, a 1×1
convolution (a dense layer for vectors), fitted to its output by least squares, takes its place: the
sewing layer.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import DataLike, InstrumentedModel, ModelLike, Operation, instrumented
from nnslicer_tf.instrument.copies import rebuild
from nnslicer_tf.semantic.neurons import neuron_layers


def remove_layers(model: ModelLike, layers: Iterable[str], x: DataLike) -> keras.Model:
    """Return a copy of a model without some of its hidden layers.

    A convolution or dense layer is removed with its batch normalisation; its activation stays.

    Args:
        model: A model without nested ones; the copy of a subclassed one is functional.
        layers: Names of hidden layers.
        x: Samples `(samples, *input shape)` on which sewing layers are fitted.

    Raises:
        InvalidArgumentError: if the model has no such hidden layer.
        UnsupportedLayerError: if a layer of another output shape is neither a dense layer nor a
            convolution whose strides alone change its positions.
    """
    im = instrumented(model, x)
    hidden = {k: v for k, v in neuron_layers(im).items() if v.parts == "units"}
    replacements: dict[str, keras.layers.Layer] = {}
    weights: dict[str, list[np.ndarray]] = {}
    for name in layers:
        check_name("hidden layer", name, hidden)
        chain = hidden[name].chain
        first = chain[0]
        for operation in chain:
            if operation.kind == "scale":
                replacements[operation.layer] = keras.layers.Identity(name=operation.layer)
        activation = getattr(first.keras_layer, "activation", None) or "linear"
        if first.input_shapes[0] == first.shape:
            replacements[name] = keras.layers.Activation(activation, name=name)
            continue
        if not _is_sewn(first):
            raise UnsupportedLayerError(
                f"Layer '{name}' turns {first.input_shapes[0]} into {first.shape}, which a 1×1 "
                "convolution with its strides does not. Do not remove this layer."
            )
        sewing: Any = keras.layers.Dense
        if len(first.shape) > 1:
            sewing = partial(keras.layers.Conv2D, kernel_size=1, strides=_strides(first))
        replacements[name] = sewing(first.shape[-1], activation=activation, name=name)
        weights[name] = _fitted(im, chain, x)
    by_id = {id(im.functional.get_layer(k)): new for k, new in replacements.items()}
    copy = rebuild(im.functional, replacements=by_id)
    for name, values in weights.items():
        replacements[name].set_weights(values)
    return copy


def _is_sewn(operation: Operation) -> bool:
    """Whether a dense layer, or a 1×1 convolution with the layer's strides, can replace it."""
    if len(operation.shape) != 3:
        return len(operation.shape) == 1
    extents = zip(operation.input_shapes[0][:-1], _strides(operation), strict=True)
    return operation.shape[:-1] == tuple(-(-extent // stride) for extent, stride in extents)


def _strides(operation: Operation) -> tuple[int, ...]:
    return tuple(getattr(operation.keras_layer, "strides", (1,) * (len(operation.shape) - 1)))


def _fitted(im: InstrumentedModel, chain: Sequence[Operation], x: DataLike) -> list[np.ndarray]:
    """Return the kernel and bias that best map a layer's inputs to its outputs."""
    first = last = chain[0]
    for operation in chain[1:]:  # the outputs are those of the normalisation, if there is one
        if operation.kind != "scale":
            break
        last = operation
    source, width = first.inputs[0], first.input_shapes[0][-1]
    steps = tuple(slice(None, None, s) for s in _strides(first))
    normal = np.zeros((width + 1, width + 1))
    right = np.zeros((width + 1, first.shape[-1]))
    for values in im.capture_batches(x, of=[source, last.name]):
        inputs = values[source][(slice(None), *steps)].reshape(-1, width).astype(np.float64)
        inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        normal += inputs.T @ inputs
        right += inputs.T @ values[last.name].reshape(-1, first.shape[-1])
    solution = np.linalg.lstsq(normal, right, rcond=1e-10)[0]
    kernel = solution[:-1] if len(first.shape) == 1 else solution[None, None, :-1]
    return [kernel.astype(np.float32), solution[-1].astype(np.float32)]
