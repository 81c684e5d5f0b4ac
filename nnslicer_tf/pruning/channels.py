"""Channels of a model's operations: how they depend on each other, and which are zero.

A channel is an index into the last axis of an operation's output: a filter, a unit, or one of the
values that a `Flatten` makes from a filter's positions.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import keras
import numpy as np

from nnslicer_tf.instrument import Affine, Elementwise, InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map
from nnslicer_tf.instrument.layout import DEPTHWISE
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.kinds import kind_of
from nnslicer_tf.pruning.units import is_removable, zero_units


class Offset(NamedTuple):
    """A bias, or a normalisation's shift, by which a channel differs from zero."""

    layer: keras.Layer
    variable: keras.Variable  # (channels,)
    slot: str | None  # name of its constraint in the layer's config; None if it is not trained
    channels: np.ndarray  # those that should be zero, bool (channels,)


def is_reader(operation: Operation) -> bool:
    """Whether an operation sums over channels: a weighted sum that is not depthwise."""
    return operation.kind == "weighted_sum" and operation.params.axes != DEPTHWISE


def mixes_channels(operation: Operation) -> bool:
    """Whether an output channel depends on other input channels; false for weighted sums."""
    params = operation.params
    if operation.kind == "mask" or isinstance(params, Lookup):  # a lookup's input has no channels
        return True
    if operation.kind == "elementwise":
        return isinstance(params, Elementwise) and bool(params.mixes)
    if operation.kind == "scale":
        # A normalisation by statistics of the sample itself is not an affine map.
        return not isinstance(params, Affine)
    kind = kind_of(operation)
    passes = kind.reach != "any" or kind.moves or operation.kind == "input"
    return not passes and not isinstance(params, Synapses)


def is_last_axis(layer: keras.layers.BatchNormalization, operation: Operation) -> bool:
    """Whether a batch normalisation acts on the last axis."""
    return layer.axis in (-1, len(operation.shape))


class ChannelGraph:
    """The channels of a model; weights are read when they are needed.

    `sources` maps the name of a routing operation to the pairs of channels that it connects:
    indices of outputs and of inputs, counted over all inputs.
    """

    def __init__(self, im: InstrumentedModel) -> None:
        self.im = im
        self.sources = {o.name: routed_channels(o) for o in im.operations if o.kind == "routing"}
        # Name of an operation without shifts → the channels in which it maps zero to zero.
        self._at_zero: dict[str, np.ndarray] = {}
        for operation in im.operations:
            has_value = operation.kind in ("rectify", "elementwise", "scale")
            if has_value and not mixes_channels(operation) and not _shifts(operation):
                zeros = (keras.ops.zeros((1, *shape)) for shape in operation.input_shapes)
                value = keras.ops.convert_to_numpy(operation.compute(*zeros))
                self._at_zero[operation.name] = ~_any_position(value)

    def affected(self, pruned: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Mark the channels that depend only on pruned channels of sums; bools `(channels,)`."""
        affected: dict[str, np.ndarray] = {}
        for operation in self.im.operations:
            if is_reader(operation) or operation.kind == "input" or mixes_channels(operation):
                state = np.zeros(_width(operation.shape), bool)
            else:
                state = self._propagate(operation, affected)
            affected[operation.name] = state | pruned.get(operation.name, False)
        return affected

    def zeroed(self, affected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Mark the affected channels that are zero once their offsets are: none after a sigmoid."""
        zeroed: dict[str, np.ndarray] = {}
        for operation in self.im.operations:
            state = affected[operation.name]
            if operation.kind == "weighted_sum":
                bias = operation.params.bias()
                if bias is not None and not isinstance(bias, keras.Variable):  # it cannot be masked
                    state = state & (keras.ops.convert_to_numpy(bias) == 0)
            elif state.any():
                state = state & self._propagate(operation, zeroed)
                state = state & self._at_zero.get(operation.name, True)
            zeroed[operation.name] = state
        return zeroed

    def zeros(self) -> dict[str, np.ndarray]:
        """Mark the channels that are zero for every input: operation name → bool `(channels,)`."""
        zero: dict[str, np.ndarray] = {}
        for operation in self.im.operations:
            if is_removable(operation):
                state = zero_units(operation)
            elif operation.kind == "input" or mixes_channels(operation):
                state = np.zeros(_width(operation.shape), bool)
            elif operation.kind == "weighted_sum":
                # Sums without a bias, and without a synapse to an input that is not zero.
                kernel, groups = operation.params, operation.params.groups
                weights = kernel.matrix() != 0
                live = ~zero[operation.inputs[0]].reshape(groups, 1, -1)
                by_group = weights.reshape(*weights.shape[:2], groups, -1).any(axis=0)
                state = ~(by_group & live.transpose(2, 0, 1)).any(axis=0).ravel()
                bias = kernel.read_bias()
                state = state if bias is None else state & (bias == 0)
            else:
                state = self._propagate(operation, zero)
                if operation.name in self._at_zero:
                    state = state & self._at_zero[operation.name]
                elif isinstance(operation.params, Affine):
                    offset = np.broadcast_to(operation.params.read()[1], operation.shape)
                    state = state & ~_any_position(offset)
            zero[operation.name] = state
        return zero

    def offsets(self, affected: Mapping[str, np.ndarray]) -> Iterator[Offset]:
        """Yield the biases and shifts that must be zero for the affected channels to be zero."""
        offsets: dict[int, Offset] = {}
        for operation in self.im.operations:
            for variable, slot in _shifts(operation):
                channels = affected[operation.name]
                if id(variable) in offsets:  # a shared layer is affected only if every call is
                    channels = channels & offsets[id(variable)].channels
                offsets[id(variable)] = Offset(operation.keras_layer, variable, slot, channels)
        yield from (offset for offset in offsets.values() if offset.channels.any())

    def _propagate(self, operation: Operation, states: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the state of an operation's channels, given those of earlier operations.

        A channel has the state if all channels that it is computed from have it; a product has it
        if one of its factors does. Masks have no channels.
        """
        of_inputs = [states[name] for name in operation.inputs if self.im[name].kind != "mask"]
        if operation.kind == "routing":
            state = np.ones(_width(operation.shape), bool)
            channels, sources = self.sources[operation.name]
            state[channels[~np.concatenate(of_inputs)[sources]]] = False
            return state
        if operation.kind == "weighted_sum":  # depthwise
            return np.repeat(of_inputs[0], _width(operation.shape) // len(of_inputs[0]))
        join = np.logical_or if operation.kind == "multiply" else np.logical_and
        return join.reduce([np.broadcast_to(state, _width(operation.shape)) for state in of_inputs])


def _shifts(operation: Operation) -> list[tuple[keras.Variable, str | None]]:
    """Return the variables that shift an operation's channels, with their constraints' names."""
    if operation.kind == "weighted_sum":
        bias = operation.params.bias()
        return [(bias, "bias_constraint")] if isinstance(bias, keras.Variable) else []
    layer = operation.keras_layer
    if not isinstance(layer, keras.layers.BatchNormalization) or not is_last_axis(layer, operation):
        return []
    shifts: list[tuple[keras.Variable, str | None]] = [(layer.moving_mean, None)]
    return [*shifts, (layer.beta, "beta_constraint")] if layer.center else shifts


def _any_position(values: np.ndarray) -> np.ndarray:
    """Mark the channels that are not zero at some position."""
    return np.any(values.reshape(-1, _width(values.shape)), axis=0)


def _width(shape: tuple[int, ...]) -> int:
    """Return the number of channels of a shape; a scalar is one."""
    return shape[-1] if shape else 1


def routed_channels(operation: Operation) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of channels that a routing connects: indices of outputs and of inputs."""
    sources = routing_map(operation).reshape(-1, _width(operation.shape))
    first = np.cumsum([0, *map(_width, operation.input_shapes)])
    parts = zip(first, operation.input_shapes, strict=False)
    channel_of = np.concatenate([a + np.arange(math.prod(s)) % _width(s) for a, s in parts])
    outputs = np.broadcast_to(np.arange(_width(operation.shape)), sources.shape)
    moved = sources != INSERTED
    pairs = np.unique(np.stack([outputs[moved], channel_of[sources[moved]]]), axis=1)
    return pairs[0], pairs[1]
