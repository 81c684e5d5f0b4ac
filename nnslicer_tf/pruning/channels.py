"""Channels of a model's operations: how they depend on each other, and which are zero.

A channel is an index into the last axis of an operation's output: a filter, a unit, or one
of the values that a `Flatten` makes from a filter's positions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from nnslicer_tf.instrument import Affine, Elementwise, InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map
from nnslicer_tf.instrument.layout import DEPTHWISE
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.kinds import kind_of
from nnslicer_tf.pruning.recurrent_units import is_removable, zero_units


@dataclass(frozen=True, eq=False)
class Offset:
    """Something that makes a channel differ from zero: a bias, or a normalisation's shift.

    Attributes:
        layer: The layer that has it.
        variable: Keras variable `(channels,)`.
        slot: Name of its constraint in the layer's config; None if it is not trained.
        channels: The channels that should be zero, bool `(channels,)`.
    """

    layer: keras.Layer
    variable: keras.Variable
    slot: str | None
    channels: np.ndarray


def is_reader(operation: Operation) -> bool:
    """Whether an operation sums over channels: a weighted sum that is not depthwise."""
    return operation.kind == "weighted_sum" and operation.params.axes != DEPTHWISE


def mixes_channels(operation: Operation) -> bool:
    """Whether an output channel depends on other input channels; false for weighted sums."""
    params = operation.params
    if operation.kind == "mask":
        return True
    if operation.kind == "elementwise":
        return isinstance(params, Elementwise) and bool(params.mixes)
    if operation.kind == "scale":
        # A normalisation by statistics of the sample itself is not an affine map.
        return not isinstance(params, Affine)
    if isinstance(params, Lookup):  # its input has no channels
        return True
    kind = kind_of(operation)
    passes = kind.reach != "any" or kind.move is not None or operation.kind == "input"
    return not passes and not isinstance(params, Synapses)


class ChannelGraph:
    """The channels of a model.

    Args:
        im: The model; weights are read when they are needed.
    """

    def __init__(self, im: InstrumentedModel) -> None:
        self.im = im
        self.sources = {o.name: _sources(o) for o in im.operations if o.kind == "routing"}
        self._at_zero = {o.name: _is_zero_at_zero(o) for o in im.operations if _is_fixed(o)}

    def affected(self, pruned: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Mark the channels that depend only on pruned channels of weighted sums.

        Args:
            pruned: Name of a weighted sum → bool `(channels,)`.

        Returns:
            Operation name → bool `(channels,)`.
        """
        affected: dict[str, np.ndarray] = {}
        for operation in self.im.operations:
            states = [affected[name] for name in self._values(operation)]
            if is_reader(operation) or operation.kind == "input" or mixes_channels(operation):
                state = np.zeros(operation.shape[-1], bool)
            else:
                state = self.propagate(operation, states)
            affected[operation.name] = state | pruned.get(operation.name, False)
        return affected

    def zeroed(self, affected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Mark the affected channels that are zero once their offsets are zero.

        Those after an activation that is not zero at zero (such as a sigmoid) are not.
        """
        zeroed: dict[str, np.ndarray] = {}
        for operation in self.im.operations:
            states = [zeroed[name] for name in self._values(operation)]
            state = affected[operation.name]
            if operation.kind == "weighted_sum":
                state = state & ~_has_fixed_bias(operation)
            elif state.any():
                state = state & self.propagate(operation, states)
                state = state & self._at_zero.get(operation.name, True)
            zeroed[operation.name] = state
        return zeroed

    def zeros(self) -> dict[str, np.ndarray]:
        """Mark the channels that are zero for every input: operation name → bool `(channels,)`."""
        zero: dict[str, np.ndarray] = {}
        for operation in self.im.operations:
            states = [zero[name] for name in self._values(operation)]
            zero[operation.name] = self._zero(operation, states)
        return zero

    def offsets(self, affected: Mapping[str, np.ndarray]) -> Iterator[Offset]:
        """Yield the biases and shifts that must be zero for the affected channels to be zero."""
        seen: dict[int, Offset] = {}
        for operation in self.im.operations:
            for variable, slot in _shifts(operation):
                channels = affected[operation.name]
                if id(variable) in seen:  # a shared layer is affected only if every call is
                    channels = channels & seen[id(variable)].channels
                seen[id(variable)] = Offset(operation.keras_layer, variable, slot, channels)
        yield from (offset for offset in seen.values() if offset.channels.any())

    def _values(self, operation: Operation) -> tuple[str, ...]:
        """Return an operation's inputs without masks, which have no channels."""
        return tuple(name for name in operation.inputs if self.im[name].kind != "mask")

    def propagate(self, operation: Operation, states: list[np.ndarray]) -> np.ndarray:
        """Return the state of an operation's channels, given the states of its inputs' channels.

        A channel has the state if all channels that it is computed from have it; a product has
        it if one of its factors does.
        """
        if operation.kind == "routing":
            state = np.ones(operation.shape[-1], bool)
            channels, sources = self.sources[operation.name]
            state[channels[~np.concatenate(states)[sources]]] = False
            return state
        if operation.kind == "weighted_sum":
            return np.repeat(states[0], operation.shape[-1] // len(states[0]))
        mapped = [np.broadcast_to(state, operation.shape[-1:]) for state in states]
        join = np.logical_or if operation.kind == "multiply" else np.logical_and
        return join.reduce(mapped)

    def _zero(self, operation: Operation, states: list[np.ndarray]) -> np.ndarray:
        if is_removable(operation):
            return zero_units(operation)
        if operation.kind == "input" or mixes_channels(operation):
            return np.zeros(operation.shape[-1], bool)
        if operation.kind == "weighted_sum":
            return _zero_sums(operation.params, states[0])
        state = self.propagate(operation, states)
        if operation.name in self._at_zero:
            return state & self._at_zero[operation.name]
        if isinstance(operation.params, Affine):
            offset = np.broadcast_to(operation.params.read()[1], operation.shape)
            return state & ~offset.reshape(-1, operation.shape[-1]).any(axis=0)
        return state


def _zero_sums(synapses: Synapses, zero: np.ndarray) -> np.ndarray:
    """Mark the outputs that have no bias, and no synapse to an input that is not zero."""
    weights = synapses.matrix() != 0
    groups = synapses.groups
    live = ~zero.reshape(groups, 1, -1)
    split = weights.reshape(*weights.shape[:2], groups, -1).any(axis=0)
    fed = (split & live.transpose(2, 0, 1)).any(axis=0).ravel()
    bias = synapses.read_bias()
    return ~fed if bias is None else ~fed & (bias == 0)


def _shifts(operation: Operation) -> list[tuple[keras.Variable, str | None]]:
    """Return an operation's variables that shift its channels, with their constraints' names."""
    if operation.kind == "weighted_sum":
        bias = operation.params.bias()
        return [(bias, "bias_constraint")] if isinstance(bias, keras.Variable) else []
    layer = operation.keras_layer
    if not isinstance(layer, keras.layers.BatchNormalization) or not is_last_axis(layer, operation):
        return []
    shifts: list[tuple[keras.Variable, str | None]] = [(layer.moving_mean, None)]
    return [*shifts, (layer.beta, "beta_constraint")] if layer.center else shifts


def _has_fixed_bias(operation: Operation) -> np.ndarray:
    """Mark the sums with a bias that is not zero and not a variable with one value per sum."""
    bias = operation.params.bias()
    if bias is None or isinstance(bias, keras.Variable):
        return np.zeros(operation.shape[-1], bool)
    return keras.ops.convert_to_numpy(bias) != 0


def is_last_axis(layer: keras.layers.BatchNormalization, operation: Operation) -> bool:
    """Whether a batch normalisation acts on the last axis."""
    return layer.axis in (-1, len(operation.shape))


def _is_fixed(operation: Operation) -> bool:
    """Whether masking leaves an operation's value at zero unchanged."""
    has_value = operation.kind in ("rectify", "elementwise", "scale")
    return has_value and not mixes_channels(operation) and not _shifts(operation)


def _is_zero_at_zero(operation: Operation) -> np.ndarray:
    """Mark the channels in which an operation maps zero to zero."""
    zeros = (keras.ops.zeros((1, *shape)) for shape in operation.input_shapes)
    value = keras.ops.convert_to_numpy(operation.compute(*zeros))
    return ~value.reshape(-1, operation.shape[-1]).any(axis=0)


def _sources(operation: Operation) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of channels that a routing operation connects: outputs, inputs.

    Input channels are numbered consecutively over all inputs.
    """
    sources = routing_map(operation).reshape(-1, operation.shape[-1])
    sizes = [int(np.prod(shape)) for shape in operation.input_shapes]
    first = np.concatenate([[0], np.cumsum([shape[-1] for shape in operation.input_shapes])])
    channel_of = np.concatenate(
        [
            begin + np.arange(size) % shape[-1]
            for begin, size, shape in zip(first, sizes, operation.input_shapes, strict=False)
        ]
    )
    outputs = np.broadcast_to(np.arange(operation.shape[-1]), sources.shape)
    moved = sources != INSERTED
    pairs = np.unique(np.stack([outputs[moved], channel_of[sources[moved]]]), axis=1)
    return pairs[0], pairs[1]
