"""Heads of attention, as the removal of neurons sees them.

A head of a `MultiHeadAttention` layer is a slice of the kernels and biases of its queries, keys and
values, and of the kernel of its output. All channels of a head go together, or not at all.
"""

from collections.abc import Mapping

import keras
import numpy as np
from keras import layers

from nnslicer_tf.instrument import Operation, Synapses

_SPLIT = ("/query", "/key", "/value")
_JOINED = ":in"


def has_heads(operation: Operation) -> bool:
    """Whether an operation is inside an attention layer whose heads can be removed.

    Layers with constraints are left out (masks of weights hold on), and those in nested models.
    """
    layer = operation.keras_layer
    if type(layer) is not layers.MultiHeadAttention or "#" in operation.name:
        return False
    if not operation.name.startswith(operation.layer):  # in a nested model
        return False
    return all(variable.constraint is None for variable in layer.trainable_variables)


def head_of_channels(operation: Operation) -> np.ndarray | None:
    """Return the head of each of an operation's channels, `(channels,)`; None if it has others."""
    part = operation.name.removeprefix(operation.layer)
    if not has_heads(operation) or part not in (*_SPLIT, _JOINED):
        return None
    heads = operation.keras_layer.num_heads
    return np.repeat(np.arange(heads), operation.shape[-1] // heads)


def first_projection(operation: Operation) -> str:
    """Return the name of the first operation of the same layer whose channels are heads'."""
    return f"{operation.layer}{_SPLIT[0]}"


def head_cuts(
    operation: Operation, outputs: np.ndarray, inputs: np.ndarray
) -> dict[int, list[tuple[int, np.ndarray]]]:
    """Return how the variables of an attention layer shrink: id of a variable → axes to cut.

    Args:
        operation: One of the layer's operations.
        outputs: Which of its channels stay.
        inputs: Which channels of its first input stay.
    """
    if not isinstance(operation.params, Synapses):
        return {}
    layer = operation.keras_layer
    part = operation.name.removeprefix(operation.layer)
    if part in _SPLIT:
        dense = {"/query": layer.query_dense, "/key": layer.key_dense, "/value": layer.value_dense}
        kept = outputs.reshape(layer.num_heads, -1)[:, 0]
        bias = dense[part].bias
        cuts = {id(dense[part].kernel): [(1, kept)]}
        return cuts if bias is None else {**cuts, id(bias): [(0, kept)]}
    kept = inputs.reshape(layer.num_heads, -1)[:, 0]
    return {id(layer.output_dense.kernel): [(0, kept)]}


def clear_heads(model: keras.Model, keep: Mapping[str, np.ndarray]) -> None:
    """Set the weights by which heads are read to 0, in place; in training they may change.

    Args:
        model: The model.
        keep: Name of an attention layer → bool array `(heads,)`, false for the heads.
    """
    for name, mask in keep.items():
        kernel = model.get_layer(name).output_dense.kernel
        kernel.assign(keras.ops.convert_to_numpy(kernel) * mask[:, None, None])
