"""Neurons, sets of critical ones, and models of these alone (NeuSemSlice, section 4.1)."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import as_mask, check_name, counted
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, ModelLike, Operation, instrumented
from nnslicer_tf.instrument.ablated_network import maskable
from nnslicer_tf.instrument.layout import DEPTHWISE, OUTPUTS_INPUTS
from nnslicer_tf.kinds.kind import aligned_mask
from nnslicer_tf.pruning.channels import routed_channels
from nnslicer_tf.pruning.removal import mask_units, remove_units
from nnslicer_tf.pruning.units import has_heads, is_removable

_ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
_STATE = ":h"
_FORMAT = "nnslicer_tf critical neurons 1"


@dataclass(frozen=True, eq=False)
class NeuronLayer:
    """The neurons of one layer.

    They are units or filters; the "heads" of an attention layer, of which a masked one's weights in
    the output projection are zero; or the "states" of a recurrent layer, of which a masked one's
    candidate is 0, and so is its state.
    """

    name: str  # the layer's
    units: int  # number of neurons
    sum: str  # name of its weighted sum's operation
    value: str  # name of the operation whose values, `(…, units)`, are the neurons' values
    chain: tuple[Operation, ...]  # the operations from the weighted sum to the value
    parts: str = "units"  # what the neurons are: "units", "heads" or "states"

    @property
    def mask(self) -> str | None:
        """Name of the operation whose mask is True at data; None without padding."""
        return self.chain[-1].mask

    def of_data(self, values: np.ndarray, masks: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return values of `sum` or `value` as `(samples, …, units)`, with zeros at padding."""
        if self.mask is not None:
            values = np.where(aligned_mask(masks[self.mask] > 0, values.ndim), values, 0)
        if self.parts == "heads":  # (samples, positions, features, heads)
            features = self.chain[0].keras_layer.value_dim
            values = np.moveaxis(values.reshape(len(values), -1, self.units, features), -2, -1)
        return values

    @cached_property
    def parameters(self) -> tuple[tuple[Any, int], ...]:
        """Trained variables with the axis along which they belong to the neurons."""
        pairs, layer = [], self.chain[0].keras_layer
        for operation in self.chain:
            if self.parts == "heads":
                for dense in (layer.query_dense, layer.key_dense, layer.value_dense):
                    pairs += [(dense.kernel, 1), (dense.bias, 0)]
            elif self.parts == "states":  # in the columns of all gates
                cell = layer.cell
                pairs += [(cell.kernel, -1), (cell.recurrent_kernel, -1), (cell.bias, -1)]
            elif operation.kind == "weighted_sum":
                kernel = operation.params
                axis = -2 if kernel.axes in (OUTPUTS_INPUTS, DEPTHWISE) else -1
                pairs += [(kernel.variable(), axis), (kernel.bias(), 0)]
            elif operation.kind == "scale":
                pairs += [(operation.keras_layer.gamma, 0), (operation.keras_layer.beta, 0)]
        return tuple((variable, axis) for variable, axis in pairs if variable is not None)


class CriticalNeurons(ShownAsTable, Mapping[str, np.ndarray]):
    """Chosen neurons: layer's name → bool array `(units,)`, True for the critical ones.

    Args:
        masks: The masks by layer.

    Raises InvalidArgumentError if there is no layer, or a mask is not a vector of bools.
    """

    def __init__(self, masks: Mapping[str, np.ndarray]) -> None:
        if not masks:
            raise InvalidArgumentError("CriticalNeurons needs at least one layer.")
        self._masks = {}
        for layer, mask in masks.items():
            array = np.array(mask)
            if array.ndim != 1 or array.dtype != bool or not isinstance(layer, str):
                raise InvalidArgumentError(
                    "Each mask must be a vector of bools, and its key a layer's name. Received: "
                    f"{array.dtype} of shape {array.shape} for {layer!r}"
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
        if not isinstance(other, CriticalNeurons):
            return NotImplemented
        sizes = {layer: len(mask) for layer, mask in self.items()}
        if sizes != {layer: len(mask) for layer, mask in other.items()}:
            raise InvalidArgumentError(
                f"Only neurons of one model can be combined. Received: {self!r}, {other!r}"
            )
        return CriticalNeurons({layer: mask | other[layer] for layer, mask in self.items()})

    def __and__(self, other: "CriticalNeurons") -> "CriticalNeurons":
        return ~(~self | ~other) if isinstance(other, CriticalNeurons) else NotImplemented

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

    def to_frame(self) -> pd.DataFrame:
        """Return one row per layer: its neurons, its critical neurons, and their share."""
        rows = [(k, len(m), int(m.sum()), float(m.mean())) for k, m in self.items()]
        return pd.DataFrame(rows, columns=["layer", "neurons", "critical", "share"])

    def save(self, path: str | os.PathLike) -> None:
        """Write an .npz file of a few kilobytes, without pickle."""
        arrays = {f"layer{i}": mask for i, mask in enumerate(self.values())}
        write_archive(path, _FORMAT, {"layers": list(self)}, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "CriticalNeurons":
        """Read what `save` wrote; raise MissingFileError, or CorruptFileError if it is damaged."""
        with read_archive(path, _FORMAT, "file of critical neurons") as file:
            return cls(file.named("layers", "layer", np.bool_, "*"))


def neuron_layers(im: ModelLike, classes: bool = False) -> dict[str, NeuronLayer]:
    """Return the layers with neurons, in topological order.

    A neuron is an output unit of a dense layer, a filter of a convolution, a head of
    `MultiHeadAttention`, whose value is its context, or a unit of a `SimpleRNN`, `LSTM` or `GRU`,
    whose value is its state at all steps. A unit's or filter's value is taken after any batch
    normalisation, activation and depthwise convolution that follow, if these map zero to zero,
    channel to channel, and nothing else reads the values in between. So a neuron with zero
    parameters has the value zero: it is masked.

    Excluded are the output layer's units (the classes); layers before a function that does not map
    zero to zero (a sigmoid gate, a layer normalisation); grouped and depthwise convolutions; layers
    that are called more than once; queries, keys and values; and recurrent layers that are wrapped
    (`Bidirectional`, stacked cells), convolutional, or exchange states with other layers; and
    `GroupQueryAttention`. In other attention layers, the neurons are the output channels.

    Args:
        im: The model.
        classes: Also return the output layer, whose units are the classes, as the last one.

    Raises UnsupportedLayerError if the model has none; with `classes`, if the logits are not the
    outputs of a dense layer, or a flattened convolution, with one unit for each class.
    """
    im = instrumented(im)
    last = im.graph.ends(im.logit_operation, ["routing"])
    logits, output = im[last[0]], im[last[-1]]
    one_each = output.shape[-1] == math.prod(output.shape) == logits.shape[-1]
    if classes and not (output.kind == "weighted_sum" and len(logits.shape) == 1 and one_each):
        raise UnsupportedLayerError(
            f"The logits '{logits.name}' of model '{im.model.name}' are {output.kind} of shape "
            f"{output.shape}, not the outputs of a layer with a unit for each class."
        )
    final = {*last, *im.output_operations}
    final_layers = {im[name].layer for name in final}
    repeated = {operation.layer for operation in im.operations if operation.is_reuse}
    layers: dict[str, NeuronLayer] = {}
    for operation in im.operations:
        name, layer, params = operation.layer, operation.keras_layer, operation.params
        if name in repeated:
            continue
        of_heads = has_heads(operation) and hasattr(layer, "num_heads")
        if operation.kind == "weighted_sum" and operation.name == name and of_heads:
            ends = f"{name}/value", f"{name}/context"
            layers[name] = NeuronLayer(name, layer.num_heads, *ends, (operation,), "heads")
        elif is_removable(operation) and params.operation.name == _STATE:
            if name not in final_layers and _is_zero(layer.activation(keras.ops.zeros((1, 1)))):
                layers[name] = _neuron_layer((operation,), "states")
        elif operation.kind == "weighted_sum" and not operation.name.endswith(":depthwise"):
            inner = isinstance(layer, _ATTENTION) and operation.name != name  # queries, keys, …
            if inner or has_heads(operation) or params.groups != 1 or params.axes == DEPTHWISE:
                continue
            chain = _chain(operation, im, repeated)
            readers = [reader.kind for reader in im.graph.consumers[chain[-1].name]]
            offset = "elementwise" in readers or "scale" in readers  # does not map zero to zero
            if final.isdisjoint(o.name for o in chain) and not offset:
                layers[name] = _neuron_layer(chain)
    if not layers:
        raise UnsupportedLayerError(
            f"Model '{im.model.name}' has no layer with neurons to choose from: no hidden dense "
            "layer, no convolution, no attention with heads and no recurrent layer. Layers that "
            "are called several times or followed by a function that is not 0 at 0, grouped "
            "convolutions, gates and wrapped recurrent layers are not considered."
        )
    return layers | ({output.layer: _neuron_layer((output,))} if classes else {})


def check_critical(
    critical: Mapping[str, np.ndarray], layers: Mapping[str, NeuronLayer]
) -> dict[str, np.ndarray]:
    """Return masks as bools; raise InvalidArgumentError if they do not match a model's layers."""
    for name, mask in critical.items():
        check_name("layer with neurons", name, layers)
        if len(mask) != layers[name].units:
            raise InvalidArgumentError(
                f"Layer '{name}' has {counted(layers[name].units, 'neuron')}. "
                f"Received: a mask of {len(mask)}"
            )
    return {name: as_mask(name, mask) for name, mask in critical.items()}


def _neuron_layer(chain: tuple[Operation, ...], parts: str = "units") -> NeuronLayer:
    first, last = chain[0], chain[-1]
    return NeuronLayer(first.layer, first.shape[-1], first.name, last.name, chain, parts)


def _chain(operation: Operation, im: InstrumentedModel, repeated: set[str]) -> tuple:
    """Return the operations from the sum to the neurons' values, which keep channels and zeros."""
    chain = [operation]
    while len(readers := im.graph.consumers[chain[-1].name]) == 1:
        (reader,) = readers
        keeps = False
        if len(reader.inputs) == 1:
            shape, params = reader.input_shapes[0], reader.params
            if reader.kind in ("rectify", "elementwise"):
                keeps = _is_zero(reader.compute(keras.ops.zeros((1, *shape))))
            elif reader.kind == "scale":
                normalises = isinstance(reader.keras_layer, keras.layers.BatchNormalization)
                keeps = normalises and reader.layer not in repeated
            elif reader.kind == "weighted_sum":
                one_to_one = params.axes == DEPTHWISE and params.shape[-1] == 1
                keeps = one_to_one and reader.layer not in repeated
            elif reader.kind == "routing" and reader.shape[-1:] == shape[-1:]:
                # Every value of an output channel is of the same input channel, or padding.
                keeps = np.array_equal(*routed_channels(reader))
        if not keeps:
            break
        chain.append(reader)
    while chain[-1].kind == "routing":
        chain.pop()
    return tuple(chain)


def _is_zero(values: Any) -> bool:
    return not keras.ops.convert_to_numpy(values).any()


def masked(
    model: ModelLike, critical: Mapping[str, np.ndarray], into: keras.Model | None = None
) -> keras.Model:
    """Return a copy of a model with all but the critical neurons masked (section 4.1).

    Masking a neuron sets its parameters, and thus its value, to zero.

    Args:
        model: A Keras model; it is not changed.
        critical: Layer → bool array `(units,)`; layers that are not named are unchanged.
        into: A model from an earlier call, whose weights are replaced in place of a new copy.

    Raises InvalidArgumentError if the masks do not match the model's layers; UnsupportedLayerError
    if the model cannot be copied.
    """
    im = maskable(model)
    return mask_units(im, check_critical(critical, neuron_layers(im)), into)


def restructure(model: ModelLike, critical: Mapping[str, np.ndarray]) -> keras.Model:
    """Return a smaller model with only the critical neurons (section 4.1).

    The others are removed with their normalisation and the weights that read them; the outputs are
    those of the model with these neurons masked. Masked neurons that cannot be
    removed, such as those that are added to critical ones, remain as zeros.

    Arguments are those of `masked`.

    Raises InvalidArgumentError if the masks do not match the layers, or leave one without neurons.
    """
    im = maskable(model)
    critical = check_critical(critical, neuron_layers(im))
    for name, mask in critical.items():
        if not mask.any():
            raise InvalidArgumentError(f"Layer '{name}' would have no neurons. Keep at least one.")
    return remove_units(im, critical)
