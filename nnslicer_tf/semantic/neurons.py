"""Neurons and sets of critical neurons.

A neuron is an output unit of a dense layer, a filter of a convolution, a head of a
`MultiHeadAttention` layer, whose value is its context, or a unit of a `SimpleRNN`, `LSTM` or `GRU`,
whose value is its state at all steps. The value of a unit or filter is taken after any batch
normalisation, activation and depthwise convolution that follow it, as long as these map zero to
zero, channel to channel, and nothing else reads the values in between. So a neuron whose
parameters are zero has the value zero: it is masked.

These neurons exclude the output layer's units (the classes), layers followed by a
function that does not map zero to zero (a convolution that gates others through a sigmoid, a
dense layer before a layer normalisation), grouped and depthwise convolutions, layers that
are called more than once, queries, keys and values, and units of recurrent layers that are wrapped
(`Bidirectional`, stacked cells), convolutional, or exchange states with other layers. In attention
layers other than `MultiHeadAttention`, the neurons are the output channels.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.layout import DEPTHWISE, OUTPUTS_INPUTS
from nnslicer_tf.instrument.recurrence import RECURRENCE
from nnslicer_tf.kinds import aligned_mask
from nnslicer_tf.pruning.heads import has_heads
from nnslicer_tf.pruning.recurrent_units import candidate_bias, candidate_masks, is_removable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
_STATE = ":h"
_FORMAT = "nnslicer_tf critical neurons 1"


@dataclass(frozen=True, eq=False)
class NeuronLayer:
    """The neurons of one layer.

    Attributes:
        name: The layer's name.
        units: Number of neurons.
        sum: Name of its weighted sum's operation.
        value: Name of the operation whose values, `(…, units)`, are the neurons' values.
        chain: The operations from the weighted sum to the value.
    """

    name: str
    units: int
    sum: str
    value: str
    chain: tuple[Operation, ...]

    @property
    def kernel(self) -> Synapses:
        """The kernel of the weighted sum."""
        return self.chain[0].params

    @property
    def mask(self) -> str | None:
        """Name of the operation that marks which positions are data; None without padding."""
        return self.chain[-1].mask

    def kernel_masks(self, neurons: np.ndarray) -> dict[str, np.ndarray]:
        """Return the masks that keep only chosen neurons: kernel's name → bools of its shape."""
        shape = self.kernel.shape
        chosen = along(neurons, len(shape), _unit_axis(self.chain[0]))
        return {self.kernel.name: np.broadcast_to(chosen, shape)}

    def bias_masks(self, neurons: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        """Return the biases that need a mask of their own, each with bools of its shape."""
        return []

    def units_last(self, values: np.ndarray) -> np.ndarray:
        """Return values of the operations `sum` or `value` as `(samples, …, units)`."""
        return values

    def of_data(self, values: np.ndarray, masks: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the values of `units_last`, with zeros at padding.

        Args:
            values: Values of the operations `sum` or `value`.
            masks: Name of a mask's operation → its values, as captured.
        """
        if self.mask is not None:
            values = np.where(aligned_mask(masks[self.mask] > 0, values.ndim), values, 0)
        return self.units_last(values)

    def channels(self, neurons: np.ndarray) -> dict[str, np.ndarray]:
        """Return the channels of chosen neurons: operation's name → bool `(channels,)`."""
        return {self.sum: np.asarray(neurons, bool)}

    @cached_property
    def parameters(self) -> tuple[tuple[Any, int], ...]:
        """Trained variables with the axis along which they belong to the neurons."""
        found = []
        for operation in self.chain:
            if operation.kind == "weighted_sum":
                found.append((operation.params.variable(), _unit_axis(operation)))
                found.append((operation.params.bias(), 0))
            elif operation.kind == "scale":
                found += [(operation.keras_layer.gamma, 0), (operation.keras_layer.beta, 0)]
        return tuple((variable, axis) for variable, axis in found if variable is not None)


class HeadLayer(NeuronLayer):
    """The heads of an attention layer.

    The chain is the projection of the heads' outputs; in it, the weights of a masked head are zero.
    """

    def kernel_masks(self, neurons: np.ndarray) -> dict[str, np.ndarray]:
        """Return a mask of the output's kernel, `(heads, features, channels)`."""
        return {self.kernel.name: np.broadcast_to(along(neurons, 3, 0), self.kernel.shape)}

    def units_last(self, values: np.ndarray) -> np.ndarray:
        """Return values as `(samples, positions, features, heads)`."""
        by_head = values.reshape(len(values), -1, self.units, self._features)
        return np.moveaxis(by_head, -2, -1)

    def channels(self, neurons: np.ndarray) -> dict[str, np.ndarray]:
        """Return the output channels of the chosen heads."""
        return {self.chain[0].inputs[0]: np.repeat(np.asarray(neurons, bool), self._features)}

    @cached_property
    def parameters(self) -> tuple[tuple[Any, int], ...]:
        """The kernels and biases of the heads' queries, keys and values."""
        layer = self.chain[0].keras_layer
        found = []
        for dense in (layer.query_dense, layer.key_dense, layer.value_dense):
            found += [(dense.kernel, 1), (dense.bias, 0)]
        return tuple((variable, axis) for variable, axis in found if variable is not None)

    @property
    def _features(self) -> int:
        return self.chain[0].keras_layer.value_dim


@dataclass(frozen=True, eq=False)
class RecurrentLayer(NeuronLayer):
    """The units of a recurrent layer.

    A masked unit's candidate is 0, and so is its state at every step, whatever its gates are.

    Attributes:
        im: The model.
    """

    im: InstrumentedModel

    def kernel_masks(self, neurons: np.ndarray) -> dict[str, np.ndarray]:
        """Return the masks of the candidates' columns."""
        return candidate_masks(self.im, self.name, np.asarray(neurons, bool))

    def bias_masks(self, neurons: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        """Return the mask of the candidates' biases."""
        bias = self._cell.bias
        return [] if bias is None else [(bias, candidate_bias(self._cell, np.asarray(neurons)))]

    def channels(self, neurons: np.ndarray) -> dict[str, np.ndarray]:
        """Return the chosen units in all operations of the layer."""
        return {
            o.name: np.asarray(neurons, bool)
            for o in self.im.operations
            if o.layer == self.name and o.kind == RECURRENCE
        }

    @cached_property
    def parameters(self) -> tuple[tuple[Any, int], ...]:
        """The columns of all gates, and their biases."""
        cell = self._cell
        found = [(cell.kernel, 1), (cell.recurrent_kernel, 1)]
        return tuple(
            found if cell.bias is None else [*found, (cell.bias, len(cell.bias.shape) - 1)]
        )

    @property
    def _cell(self) -> keras.Layer:
        return self.chain[0].keras_layer.cell


class CriticalNeurons(ShownAsTable, Mapping[str, np.ndarray]):
    """Chosen neurons: layer's name → bool array `(units,)`, True for the critical ones.

    Args:
        masks: The masks by layer.

    Raises:
        InvalidArgumentError: if there is no layer, or a mask is not a vector of bools.
    """

    def __init__(self, masks: Mapping[str, np.ndarray]) -> None:
        if not masks:
            raise InvalidArgumentError("CriticalNeurons needs at least one layer.")
        self._masks = {}
        for layer, mask in masks.items():
            array = np.array(mask)
            if array.ndim != 1 or array.dtype != bool:
                raise InvalidArgumentError(
                    f"The mask of layer '{layer}' must be a vector of bools. "
                    f"Received: {array.dtype} of shape {array.shape}"
                )
            array.flags.writeable = False
            self._masks[layer] = array

    def __getitem__(self, layer: str) -> np.ndarray:
        return self._masks[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CriticalNeurons):
            return NotImplemented
        return list(self) == list(other) and all(np.array_equal(self[k], other[k]) for k in self)

    def __or__(self, other: "CriticalNeurons") -> "CriticalNeurons":
        return self._combined(other, np.logical_or)

    def __and__(self, other: "CriticalNeurons") -> "CriticalNeurons":
        return self._combined(other, np.logical_and)

    def __invert__(self) -> "CriticalNeurons":
        return CriticalNeurons({layer: ~mask for layer, mask in self.items()})

    def __repr__(self) -> str:
        parts = ", ".join(f"{layer} {m.sum()}/{len(m)}" for layer, m in list(self.items())[:8])
        rest = f", … {len(self) - 8} layers more" if len(self) > 8 else ""
        return f"CriticalNeurons({self.count} of {self.total} neurons: {parts}{rest})"

    @property
    def count(self) -> int:
        """Number of critical neurons."""
        return int(sum(mask.sum() for mask in self.values()))

    @property
    def total(self) -> int:
        """Number of neurons."""
        return int(sum(map(len, self.values())))

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per layer: neurons, critical ones, their share."""
        import pandas as pd

        return pd.DataFrame(
            {
                "layer": list(self),
                "neurons": [len(mask) for mask in self.values()],
                "critical": [int(mask.sum()) for mask in self.values()],
                "share": [float(mask.mean()) for mask in self.values()],
            }
        )

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw a bar for every layer: the share of its neurons that are critical."""
        from nnslicer_tf.report import plot_bars

        ax = plot_bars(self.to_frame().set_index("layer")[["share"]], ax)
        ax.set(ylim=(0, 1), ylabel="share of neurons critical")
        return ax

    def save(self, path: str | os.PathLike) -> None:
        """Write an .npz file of a few kilobytes, without pickle."""
        arrays = {f"layer{i}": mask for i, mask in enumerate(self.values())}
        write_archive(path, _FORMAT, {"layers": list(self)}, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "CriticalNeurons":
        """Read a file that `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            CorruptFileError: if it is damaged, or of another kind.
        """
        with read_archive(path, _FORMAT, "file of critical neurons") as file:
            names = file.names("layers")
            return cls({n: file.array(f"layer{i}", np.bool_, "*") for i, n in enumerate(names)})

    def _combined(self, other: "CriticalNeurons", how: Callable) -> "CriticalNeurons":
        sizes = {layer: len(mask) for layer, mask in self.items()}
        if sizes != {layer: len(mask) for layer, mask in other.items()}:
            raise InvalidArgumentError(
                f"Only critical neurons of one model can be combined. Received: {self!r}, {other!r}"
            )
        return CriticalNeurons({layer: how(self[layer], other[layer]) for layer in self})


def neuron_layers(im: InstrumentedModel) -> dict[str, NeuronLayer]:
    """Return the layers with neurons, in topological order; see the module for which.

    Raises:
        UnsupportedLayerError: if the model has none.
    """
    final = {*_back_through_routing(im), *im.output_operations}
    layers: dict[str, NeuronLayer] = {}
    for operation in im.operations:
        if _is_joined_heads(operation, im):
            layers[operation.layer] = _head_layer(operation)
        if _is_state(operation, im) and operation.layer not in (im[name].layer for name in final):
            layers[operation.layer] = _recurrent_layer(operation, im)
        if not _has_neurons(operation, im):
            continue
        chain = _chain(operation, im)
        readers = [taker.kind for taker in im.graph.consumers[chain[-1].name]]
        offset = "elementwise" in readers or "scale" in readers  # does not map zero to zero
        if final.isdisjoint(o.name for o in chain) and not offset:
            layers[operation.layer] = _neuron_layer(operation, chain)
    if not layers:
        raise UnsupportedLayerError(
            f"Model '{im.model.name}' has no layer with neurons to choose from: no hidden dense "
            "layer, no convolution, no attention with heads and no recurrent layer; grouped "
            "convolutions, gates and wrapped recurrent layers are left out. Give a model that has."
        )
    return layers


def output_layer(im: InstrumentedModel) -> NeuronLayer:
    """Return the layer whose units are the classes: dense, or a convolution that is flattened.

    Raises:
        UnsupportedLayerError: if the logits are not the outputs of such a layer.
    """
    logits, operation = im[im.logit_operation], im[_back_through_routing(im)[-1]]
    one_unit_a_class = operation.shape[-1] == math.prod(operation.shape) == logits.shape[-1]
    if operation.kind != "weighted_sum" or len(logits.shape) != 1 or not one_unit_a_class:
        raise UnsupportedLayerError(
            f"The logits '{logits.name}' of model '{im.model.name}' are {operation.kind} of shape "
            f"{operation.shape}, not the outputs of a layer with a unit for each class. Give a "
            "classifier."
        )
    return _neuron_layer(operation, (operation,))


def _back_through_routing(im: InstrumentedModel) -> list[str]:
    """Return the logits' operation, and those before it that only route values to it."""
    names = [im.logit_operation]
    while im[names[-1]].kind == "routing" and len(im[names[-1]].inputs) == 1:
        names.append(im[names[-1]].inputs[0])
    return names


def check_critical(critical: Mapping[str, np.ndarray], layers: Mapping[str, NeuronLayer]) -> None:
    """Reject masks that do not match a model's layers.

    Raises:
        InvalidArgumentError: for a layer that the model does not have, or another width.
    """
    for name, mask in critical.items():
        check_name("layer with neurons", name, layers)
        if len(mask) != layers[name].units:
            raise InvalidArgumentError(
                f"Layer '{name}' has {layers[name].units} neurons. Received: a mask of {len(mask)}"
            )


def along(mask: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """Reshape a vector over neurons so that it broadcasts to an array of `rank` axes."""
    shape = [1] * rank
    shape[axis] = -1
    return mask.reshape(shape)


def _neuron_layer(operation: Operation, chain: tuple[Operation, ...]) -> NeuronLayer:
    units = operation.shape[-1]
    return NeuronLayer(operation.layer, units, operation.name, chain[-1].name, chain)


def _has_neurons(operation: Operation, im: InstrumentedModel) -> bool:
    if operation.kind != "weighted_sum" or operation.name.endswith(":depthwise"):
        return False
    is_attention = isinstance(operation.keras_layer, _ATTENTION)
    if is_attention and (has_heads(operation) or operation.name != operation.layer):
        return False
    whole = operation.params.groups == 1 and operation.params.axes != DEPTHWISE
    return whole and _called_once(operation, im)


def _is_joined_heads(operation: Operation, im: InstrumentedModel) -> bool:
    """Whether an operation projects the outputs of an attention layer's heads."""
    is_output = operation.kind == "weighted_sum" and operation.name == operation.layer
    return is_output and has_heads(operation) and _called_once(operation, im)


def _head_layer(operation: Operation) -> HeadLayer:
    name, heads = operation.layer, operation.keras_layer.num_heads
    return HeadLayer(name, heads, f"{name}/value", f"{name}/context", (operation,))


def _is_state(operation: Operation, im: InstrumentedModel) -> bool:
    """Whether an operation computes the state of a recurrent layer whose units are neurons."""
    if not is_removable(operation) or operation.params.operation.name != _STATE:
        return False
    zero_stays = _is_zero(operation.keras_layer.activation(keras.ops.zeros((1, 1))))
    return zero_stays and _called_once(operation, im)


def _recurrent_layer(operation: Operation, im: InstrumentedModel) -> RecurrentLayer:
    name, units = operation.layer, operation.shape[-1]
    return RecurrentLayer(name, units, operation.name, operation.name, (operation,), im)


def _called_once(operation: Operation, im: InstrumentedModel) -> bool:
    return not any(o.layer == operation.layer and "#" in o.name for o in im.operations)


def _chain(operation: Operation, im: InstrumentedModel) -> tuple[Operation, ...]:
    """Return the operations from the weighted sum to the neurons' values, less final routing."""
    chain = [operation]
    while len(takers := im.graph.consumers[chain[-1].name]) == 1:
        (following,) = takers
        if len(following.inputs) != 1 or not _keeps_neurons(following, im):
            break
        chain.append(following)
    while chain[-1].kind == "routing":
        chain.pop()
    return tuple(chain)


def _keeps_neurons(operation: Operation, im: InstrumentedModel) -> bool:
    """Whether channels stay separate, and a channel without parameters is mapped to zero."""
    if operation.kind in ("rectify", "elementwise"):
        return _maps_zero_to_zero(operation)
    if operation.kind == "scale":
        normalises = isinstance(operation.keras_layer, keras.layers.BatchNormalization)
        return normalises and _called_once(operation, im)
    if operation.kind == "weighted_sum":
        one_to_one = operation.params.axes == DEPTHWISE and operation.params.shape[-1] == 1
        return one_to_one and _called_once(operation, im)
    return operation.kind == "routing" and _keeps_channels(operation)


def _maps_zero_to_zero(operation: Operation) -> bool:
    return _is_zero(operation.compute(keras.ops.zeros((1, *operation.input_shapes[0]))))


def _is_zero(values: Any) -> bool:
    return not keras.ops.convert_to_numpy(values).any()


def _keeps_channels(operation: Operation) -> bool:
    """Whether every value of an output channel comes from the same input channel, or padding."""
    if operation.shape[-1] != operation.input_shapes[0][-1]:
        return False
    numbers = np.arange(1, operation.shape[-1] + 1, dtype=np.float32)
    x = np.broadcast_to(numbers, (1, *operation.input_shapes[0]))
    y = keras.ops.convert_to_numpy(operation.compute(keras.ops.convert_to_tensor(x)))
    return bool(((y == 0) | (y == numbers)).all())


def _unit_axis(operation: Operation) -> int:
    if operation.params.axes in (OUTPUTS_INPUTS, DEPTHWISE):
        return len(operation.params.shape) - 2
    return len(operation.params.shape) - 1
