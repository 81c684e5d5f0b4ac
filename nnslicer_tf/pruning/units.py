"""Units of recurrent layers and attention heads, for the removal of neurons.

A head of a `MultiHeadAttention` layer is a slice of the kernels and biases of its queries, keys and
values, and of its output's kernel. A head's channels can only be removed together; in a
`GroupQueryAttention`, those of a key's and value's head with all query heads that share it.

A unit of a SimpleRNN, LSTM or GRU has a column in each gate, a row of the recurrent kernel, and
biases. If its candidate's weights and bias are 0 and the activation maps 0 to 0, its state is
always 0, whatever its gates are. Units stay in layers that receive or return states, in stacked
cells, and in `Bidirectional` and convolutional layers.
"""

from collections.abc import Iterator

import keras
import numpy as np
from keras import layers

from nnslicer_tf.instrument import InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.recurrence import SEQUENCE, Gate, Member, Weights

LAYERS = (layers.SimpleRNN, layers.LSTM, layers.GRU)
_CANDIDATES = (":h", ":h:pre", ":g", ":g:pre", ":g:input", ":g:recurrent")
_SPLIT = ("/query", "/key", "/value")
_JOINED = ":in"


def is_removable(operation: Operation) -> bool:
    """Whether an operation is inside a recurrent layer whose units can be removed."""
    if not isinstance(operation.params, Member) or type(operation.keras_layer) not in LAYERS:
        return False
    given = len(operation.inputs) - operation.params.unrolled.masked
    return given == 1 and not operation.keras_layer.return_state


def first_member(operation: Operation) -> str:
    """Return the name of the first operation of the same call of the layer."""
    member: Member = operation.params
    return operation.name.removesuffix(member.operation.name) + member.unrolled.cell[0].name


def gate_of(operation: Operation) -> Gate | None:
    """Return the weighted sum of a gate; None for other operations."""
    inner = operation.params.operation.params if isinstance(operation.params, Member) else None
    return inner if isinstance(inner, Gate) else None


def gate_reads(operation: Operation) -> Iterator[tuple[str, Weights]]:
    """Yield what a removable gate reads, with its weights; the first operation is the state."""
    gate = gate_of(operation) if is_removable(operation) else None
    if gate is not None:
        for name, weights in zip(operation.params.operation.inputs, gate.weights, strict=True):
            yield operation.inputs[0] if name == SEQUENCE else first_member(operation), weights


def zero_units(operation: Operation) -> np.ndarray:
    """Mark the units of an operation's layer whose state is always 0, bool `(units,)`."""
    units = np.ones(operation.shape[-1], bool)
    if keras.ops.any(operation.keras_layer.activation(keras.ops.zeros((1, 1)))):
        return ~units
    for inner in operation.params.unrolled.cell:
        if inner.name in _CANDIDATES and isinstance(inner.params, Gate):
            for weights in inner.params.weights:
                units &= ~weights.columns(weights.kernel.kernel()).any(axis=0)
            bias = inner.params.bias()
            if bias is not None:
                units &= keras.ops.convert_to_numpy(bias) == 0
    return units


def candidate_masks(im: InstrumentedModel, layer: str, keep: np.ndarray) -> dict[str, np.ndarray]:
    """Return kernel masks by which the states of units are 0 where `keep`, `(units,)`, is false."""
    masks: dict[str, np.ndarray] = {}
    for operation in im.operations:
        gate = gate_of(operation) if operation.layer == layer else None
        if gate is not None and operation.params.operation.name in _CANDIDATES:
            for weights in gate.weights:
                kernel = weights.kernel
                mask = masks.setdefault(kernel.name, np.ones(kernel.shape, bool))
                mask[:, weights.start : weights.stop] &= keep
    return masks


def has_heads(operation: Operation) -> bool:
    """Whether an operation is inside an attention layer whose heads can be removed."""
    layer = operation.keras_layer
    known = type(layer) in (layers.MultiHeadAttention, layers.GroupQueryAttention)
    if not known or operation.is_reuse or getattr(layer, "use_gate", False):
        return False
    if not operation.name.startswith(operation.layer):  # in a nested model
        return False
    # Masks, which are constraints, must persist.
    return all(variable.constraint is None for variable in layer.trainable_variables)


def count_heads(layer: keras.Layer) -> int:
    """Return the number of an attention layer's heads that can be removed separately."""
    return getattr(layer, "num_key_value_heads", None) or layer.num_heads


def head_of_channels(operation: Operation) -> np.ndarray | None:
    """Return the head of each channel, `(channels,)`; None if channels do not belong to heads."""
    part = operation.name.removeprefix(operation.layer)
    if not has_heads(operation) or part not in (*_SPLIT, _JOINED):
        return None
    heads = count_heads(operation.keras_layer)
    return np.repeat(np.arange(heads), operation.shape[-1] // heads)


def head_cuts(
    operation: Operation, outputs: np.ndarray, inputs: np.ndarray
) -> dict[int, list[tuple[int, np.ndarray]]]:
    """Return the axes to cut of an attention layer's variables, by id, for channels that stay."""
    if not isinstance(operation.params, Synapses):
        return {}
    layer = operation.keras_layer
    part = operation.name.removeprefix(operation.layer)
    stay = (outputs if part in _SPLIT else inputs).reshape(count_heads(layer), -1)[:, 0]
    if part not in _SPLIT:
        kernel = layer._output_dense.kernel  # of a grouped attention, too
        return {id(kernel): [(0, np.repeat(stay, kernel.shape[0] // len(stay)))]}
    dense = getattr(layer, f"_{part[1:]}_dense")
    heads = np.repeat(stay, dense.kernel.shape[1] // len(stay))
    cuts = {id(dense.kernel): [(1, heads)]}
    return cuts if dense.bias is None else {**cuts, id(dense.bias): [(0, heads)]}
