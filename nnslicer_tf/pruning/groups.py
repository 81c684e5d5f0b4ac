"""Groups of channels that can only be removed together."""

from collections.abc import Iterable
from dataclasses import dataclass

import keras
import numpy as np
from keras import layers
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.layers.weighted_sums import LAYERS as WEIGHTED_SUMS
from nnslicer_tf.instrument.layout import DEPTHWISE
from nnslicer_tf.pruning import units
from nnslicer_tf.pruning.channels import ChannelGraph, is_last_axis, is_reader, mixes_channels

# Routing layers that adapt to a different number of channels.
_ADAPTING = (
    *(layers.Flatten, layers.Concatenate, layers.RepeatVector),
    *(layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D),
    *(layers.Cropping1D, layers.Cropping2D, layers.Cropping3D),
    *(layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D),
)


@dataclass(frozen=True)
class ChannelGroups:
    """A partition of all channels into groups that are removed together."""

    of: dict[str, np.ndarray]  # operation name → index of each channel's group, int (channels,)
    fixed: np.ndarray  # whether each group must stay, bool (groups,)


def own_layer(im: InstrumentedModel, operation: Operation) -> str:
    """Return the name of the own layer, one without a rule, that contains an operation, or ""."""
    model: keras.Model = im.functional
    *outer, _ = (operation.layer + operation.part.partition(":")[0]).split("/")
    for name in outer:
        known = {part.name: part for part in model.layers}
        layer = known.get(name) or known.get(name.rpartition("#")[0])  # of a further call
        if not isinstance(layer, keras.Model):
            of_keras = layer is None or type(layer).__module__.startswith("keras.")
            return "" if layer is None or of_keras else str(layer.name)
        model = layer
    return ""


def channel_groups(graph: ChannelGraph, classes: Iterable[int] | None = None) -> ChannelGroups:
    """Return the groups of channels that are connected by anything except weighted sums.

    `classes` are the outputs that must stay; all by default. If only some must, the model has to
    end in a vector of logits, or an activation of it.
    """
    im = graph.im
    ends = np.cumsum([(o.shape or (1,))[-1] for o in im.operations])  # a scalar is one channel
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    numbers = {o.name: part for o, part in zip(im.operations, parts, strict=True)}
    fixed = np.zeros(int(ends[-1]), bool)
    none = np.zeros(0, int)
    links: list[tuple[np.ndarray, np.ndarray]] = [(none, none)]
    first_call: dict[str, Operation] = {}
    # What follows the logits accepts any number of classes.
    free: set[str] = set()
    if classes is not None:
        free = {o.name for o in im.graph.between([im.logit_operation], im.output_operations)}

    for operation in im.operations:
        outputs = numbers[operation.name]
        inputs = [numbers[name] for name in operation.inputs]
        if units.is_removable(operation):  # everything that belongs to a unit
            links.append((outputs, numbers[units.first_member(operation)]))
            continue
        if units.has_heads(operation):
            heads = units.head_of_channels(operation)
            first_call.setdefault(operation.name, operation)
            if heads is not None:  # the channels of a head, in all projections
                first = numbers[f"{operation.layer}/query"]
                width = len(first) // units.count_heads(operation.keras_layer)
                links.append((outputs, first[heads * width]))
            if operation.kind == "weighted_sum":  # channels outside of the heads
                fixed[inputs[0] if heads is not None else outputs] = True
            continue
        # Output channels belong to the input channels that they are computed from.
        if operation.kind == "routing":
            channels, sources = graph.sources[operation.name]
            links.append((outputs[channels], np.concatenate(inputs)[sources]))
        elif operation.kind == "weighted_sum" and not is_reader(operation):
            links.append((outputs, np.repeat(inputs[0], len(outputs) // len(inputs[0]))))
        elif not is_reader(operation):
            links += [(outputs, n) for n in inputs if len(n) == len(outputs)]
        # Some layers cannot be rebuilt, and some channels are broadcast to several.
        if operation.name not in free:
            if not inputs or own_layer(im, operation) or not _adapts(operation, graph):
                fixed[np.concatenate([*inputs, outputs])] = True
            elif operation.kind not in ("routing", "weighted_sum"):
                for n in inputs:
                    fixed[n] |= len(n) != len(outputs)
        # A shared layer has the same channels at every call.
        first_of = first_call.setdefault(operation.layer + operation.part, operation)
        if first_of is not operation:
            here, there = (*operation.inputs, operation.name), (*first_of.inputs, first_of.name)
            pairs = [(numbers[a], numbers[b]) for a, b in zip(here, there, strict=True)]
            links += [(a, b) for a, b in pairs if len(a) == len(b)]

    for name in im.output_operations:
        fixed[numbers[name][slice(None) if classes is None else sorted(classes)]] = True
    ends_of_links = tuple(np.concatenate(side) for side in zip(*links, strict=True))
    weights = np.ones(len(ends_of_links[0]))
    edges = coo_array((weights, ends_of_links), shape=(len(fixed), len(fixed)))
    count, group_of = connected_components(edges, directed=False)
    stays = np.zeros(count, bool)
    np.logical_or.at(stays, group_of, fixed)
    return ChannelGroups({name: group_of[n] for name, n in numbers.items()}, stays)


def _adapts(operation: Operation, graph: ChannelGraph) -> bool:
    """Whether an operation can be rebuilt for fewer channels."""
    layer = operation.keras_layer
    if mixes_channels(operation):
        return False
    if operation.kind == "weighted_sum":
        is_grouped = operation.params.axes != DEPTHWISE and operation.params.groups > 1
        return type(layer) in WEIGHTED_SUMS and not is_grouped
    if operation.kind == "routing" and not isinstance(layer, _ADAPTING):
        # Each output channel comes from the same input channel.
        channels, sources = graph.sources[operation.name]
        if len(operation.inputs) > 1 or not np.array_equal(channels, sources):
            return False
        resizes = type(layer) in units.LAYERS or isinstance(layer, layers.Reshape)
        return resizes or operation.shape == operation.input_shapes[0]
    if isinstance(layer, layers.BatchNormalization):
        return is_last_axis(layer, operation)
    has_weights = bool(getattr(layer, "weights", []))
    return not has_weights or type(layer) in (*WEIGHTED_SUMS, layers.PReLU)
