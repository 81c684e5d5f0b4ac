"""Groups of channels that can only be removed together."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from keras import layers

from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.layout import DEPTHWISE
from nnslicer_tf.pruning.channels import ChannelGraph, is_last_axis, is_reader, mixes_channels
from nnslicer_tf.pruning.heads import first_projection, has_heads, head_of_channels
from nnslicer_tf.pruning.recurrent_units import LAYERS, first_member, is_removable

_SUMS = (
    *(layers.Dense, layers.Conv1D, layers.Conv2D, layers.Conv3D),
    *(layers.DepthwiseConv1D, layers.DepthwiseConv2D),
    *(layers.SeparableConv1D, layers.SeparableConv2D),
    *(layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose),
)
# Routing layers that adapt to a different number of channels.
_ADAPTING = (
    *(layers.Flatten, layers.Concatenate, layers.RepeatVector),
    *(layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D),
    *(layers.Cropping1D, layers.Cropping2D, layers.Cropping3D),
    *(layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D),
)


@dataclass(frozen=True)
class ChannelGroups:
    """A partition of all channels into groups that are removed together.

    Attributes:
        of: Operation name → number of each channel's group, int `(channels,)`.
        fixed: Whether each group must stay, bool `(groups,)`.
    """

    of: dict[str, np.ndarray]
    fixed: np.ndarray


def channel_groups(graph: ChannelGraph, classes: Iterable[int] | None = None) -> ChannelGroups:
    """Return the groups of channels that are connected by anything except weighted sums.

    Args:
        graph: The model's channels.
        classes: Outputs of a classifier that must stay; all by default. If only some must stay,
            the model has to end in a vector of logits, or an activation of it.
    """
    operations = graph.im.operations
    free = set() if classes is None else _after_logits(graph.im)
    ends = np.cumsum([operation.shape[-1] for operation in operations])
    numbers = {
        o.name: np.arange(end - o.shape[-1], end) for o, end in zip(operations, ends, strict=True)
    }
    union = _Union(int(ends[-1]))
    fixed = np.zeros(int(ends[-1]), bool)
    first_call: dict[str, Operation] = {}
    for operation in operations:
        inputs = [numbers[name] for name in operation.inputs]
        if is_removable(operation):  # everything that belongs to a unit
            union.join(numbers[operation.name], numbers[first_member(operation)])
            continue
        if has_heads(operation):
            first_call.setdefault(operation.name, operation)
            _tie_heads(operation, numbers, union)
            fixed[list(_fixed_of_attention(operation, numbers))] = True
            continue
        _tie(operation, inputs, numbers[operation.name], graph, union)
        if operation.name not in free:
            fixed[list(_fixed(operation, inputs, numbers[operation.name], graph))] = True
        first = first_call.setdefault(re.sub(r"#\d+", "", operation.name), operation)
        if first is not operation:  # a shared layer has the same channels at every call
            here, there = (*operation.inputs, operation.name), (*first.inputs, first.name)
            for a, b in zip(here, there, strict=True):
                if len(numbers[a]) == len(numbers[b]):
                    union.join(numbers[a], numbers[b])
    kept = slice(None) if classes is None else sorted(classes)
    for name in graph.im.output_operations:
        fixed[numbers[name][kept]] = True
    roots, members = np.unique(union.roots(), return_inverse=True)
    stays = np.zeros(len(roots), bool)
    np.logical_or.at(stays, members, fixed)
    return ChannelGroups({name: members[n] for name, n in numbers.items()}, stays)


def _tie_heads(operation: Operation, numbers: dict[str, np.ndarray], union: "_Union") -> None:
    """Join all channels of each attention head, over all projections."""
    heads = head_of_channels(operation)
    if heads is not None:
        first = numbers[first_projection(operation)]
        own = len(first) // operation.keras_layer.num_heads
        union.join(numbers[operation.name], first[heads * own])


def _fixed_of_attention(operation: Operation, numbers: dict[str, np.ndarray]) -> np.ndarray:
    """Return the channels that must stay because of a projection: those outside the heads."""
    if operation.kind != "weighted_sum":
        return numbers[operation.name][:0]
    is_split = head_of_channels(operation) is not None
    return numbers[operation.inputs[0] if is_split else operation.name]


def _after_logits(im: InstrumentedModel) -> set[str]:
    """Return the operations that turn logits into probabilities, which accept any number."""
    return {o.name for o in im.graph.between([im.logit_operation], im.output_operations)}


def _tie(
    operation: Operation,
    inputs: list[np.ndarray],
    outputs: np.ndarray,
    graph: ChannelGraph,
    union: "_Union",
) -> None:
    """Join an operation's output channels with the input channels they are computed from."""
    if is_reader(operation):
        return
    if operation.kind == "routing":
        channels, sources = graph.sources[operation.name]
        union.join(outputs[channels], np.concatenate(inputs)[sources])
    elif operation.kind == "weighted_sum":
        union.join(outputs, np.repeat(inputs[0], len(outputs) // len(inputs[0])))
    else:
        for numbers in inputs:
            if len(numbers) == len(outputs):
                union.join(outputs, numbers)


def _fixed(
    operation: Operation, inputs: list[np.ndarray], outputs: np.ndarray, graph: ChannelGraph
) -> Iterable[int]:
    """Return the channels that must stay because of an operation."""
    if not inputs or not _adapts(operation, graph):
        return np.concatenate([*inputs, outputs])
    return np.concatenate([n for n in inputs if not _fits(operation, n, outputs)] or [outputs[:0]])


def _fits(operation: Operation, inputs: np.ndarray, outputs: np.ndarray) -> bool:
    """Whether no channel is broadcast to several."""
    elementwise = operation.kind not in ("routing", "weighted_sum")
    return not elementwise or len(inputs) == len(outputs)


def _adapts(operation: Operation, graph: ChannelGraph) -> bool:
    """Whether an operation can be rebuilt for fewer channels."""
    layer = operation.keras_layer
    if mixes_channels(operation):
        return False
    if operation.kind == "weighted_sum":
        is_grouped = operation.params.axes != DEPTHWISE and operation.params.groups > 1
        return type(layer) in _SUMS and not is_grouped
    if operation.kind == "routing" and not isinstance(layer, _ADAPTING):
        return _keeps_channels(operation, graph) and (
            type(layer) in LAYERS
            or isinstance(layer, layers.Reshape)
            or operation.shape == operation.input_shapes[0]
        )
    if isinstance(layer, layers.BatchNormalization):
        return is_last_axis(layer, operation)
    return not getattr(layer, "weights", []) or type(layer) in (*_SUMS, layers.PReLU)


def _keeps_channels(operation: Operation, graph: ChannelGraph) -> bool:
    """Whether each output channel of a routing operation comes from the same input channel."""
    channels, sources = graph.sources[operation.name]
    return len(operation.inputs) == 1 and np.array_equal(channels, sources)


class _Union:
    """Disjoint sets (union-find) of the numbers 0 … size - 1."""

    def __init__(self, size: int) -> None:
        self._parents = list(range(size))

    def join(self, a: np.ndarray, b: np.ndarray) -> None:
        """Join the sets of a[i] and b[i], for each i."""
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            self._parents[self._root(x)] = self._root(y)

    def roots(self) -> np.ndarray:
        """Return for each number a representative that all members of its set share."""
        return np.array([self._root(x) for x in range(len(self._parents))])

    def _root(self, x: int) -> int:
        while self._parents[x] != x:
            self._parents[x] = self._parents[self._parents[x]]
            x = self._parents[x]
        return x
