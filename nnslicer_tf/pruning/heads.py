"""Attention heads, for the removal of neurons.

A head of a `MultiHeadAttention` layer is a slice of the kernels and biases of its queries, keys and
values, and of its output's kernel. A head's channels can only be removed together.
"""

import numpy as np
from keras import layers

from nnslicer_tf.instrument import Operation, Synapses

_SPLIT = ("/query", "/key", "/value")
_JOINED = ":in"


def has_heads(operation: Operation) -> bool:
    """Whether an operation is inside an attention layer whose heads can be removed."""
    layer = operation.keras_layer
    if type(layer) is not layers.MultiHeadAttention or "#" in operation.name:
        return False
    if not operation.name.startswith(operation.layer):  # in a nested model
        return False
    # Masks, which are constraints, must persist.
    return all(variable.constraint is None for variable in layer.trainable_variables)


def head_of_channels(operation: Operation) -> np.ndarray | None:
    """Return the head of each channel, `(channels,)`; None if channels do not belong to heads."""
    part = operation.name.removeprefix(operation.layer)
    if not has_heads(operation) or part not in (*_SPLIT, _JOINED):
        return None
    heads = operation.keras_layer.num_heads
    return np.repeat(np.arange(heads), operation.shape[-1] // heads)


def first_projection(operation: Operation) -> str:
    """Return the name of the layer's first operation whose channels belong to heads."""
    return f"{operation.layer}{_SPLIT[0]}"


def head_cuts(
    operation: Operation, outputs: np.ndarray, inputs: np.ndarray
) -> dict[int, list[tuple[int, np.ndarray]]]:
    """Return the axes to cut of an attention layer's variables, by the variables' ids.

    `outputs` and `inputs` mark the channels of the operation, and of its first input, that stay.
    """
    if not isinstance(operation.params, Synapses):
        return {}
    layer = operation.keras_layer
    part = operation.name.removeprefix(operation.layer)
    if part not in _SPLIT:
        heads = inputs.reshape(layer.num_heads, -1)[:, 0]
        return {id(layer.output_dense.kernel): [(0, heads)]}
    heads = outputs.reshape(layer.num_heads, -1)[:, 0]
    dense = getattr(layer, f"{part[1:]}_dense")
    cuts = {id(dense.kernel): [(1, heads)]}
    return cuts if dense.bias is None else {**cuts, id(dense.bias): [(0, heads)]}
