"""Physical removal of dead neurons: smaller kernels with the same outputs.

A channel (a filter or a unit) is removed if it is zero for every input, or if no living channel
reads it. Its weights in batch normalisations, depthwise kernels and PReLUs are removed with it,
and so are its rows in the kernels that read it, even through pooling, `Flatten`, padding,
`Concatenate` and merges. Units of a SimpleRNN, LSTM or GRU (see `recurrent_units`) and attention
heads (see `heads`) are removed in the same way.

Limits: channels that are added to each other are removed only if all of them can be. Channels
next to reshapes that move channels, grouped convolutions, layer normalisation and custom layers
are kept, and every layer keeps at least one. A neuron that is constant but not zero is not dead.

Cost: a copy of the model and a pass over its weights.
"""

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, Operation, check_copy, rebuild
from nnslicer_tf.instrument.layout import DEPTHWISE, OUTPUTS_INPUTS
from nnslicer_tf.instrument.masked import maskable
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning.channels import ChannelGraph, is_reader
from nnslicer_tf.pruning.groups import ChannelGroups, channel_groups
from nnslicer_tf.pruning.heads import clear_heads, has_heads, head_cuts, head_of_channels
from nnslicer_tf.pruning.masks import SLOTS, MaskPlan, read_mask, serialized
from nnslicer_tf.pruning.recurrent_units import (
    candidate_masks,
    clear_biases,
    gate_reads,
    is_removable,
)

Cuts = list[tuple[int, np.ndarray]]  # axis, what to keep along it


def remove_units(model: ModelLike, keep: Mapping[str, np.ndarray]) -> keras.Model:
    """Return a smaller copy without some units or filters, and without all that depends on them.

    Its outputs are those of `mask_units`: a removed unit counts as zero wherever it is read.

    Args:
        model: Any model that `InstrumentedModel` accepts; the copy of a subclassed model is
            functional.
        keep: Name of a layer with a kernel → bool array `(units,)`, false for the units or
            filters to remove (for a separable convolution, those of its pointwise part; for
            `MultiHeadAttention`, its heads). Layers that are not named only lose units that are
            dead without the removed ones.

    Raises:
        InvalidArgumentError: if there is no such layer, or it has a different number of units.
        UnsupportedLayerError: if a layer cannot be masked (see `apply_masks`).
    """
    im = maskable(model)
    return compact(im.like(masked_units(im, keep)))


def mask_units(model: ModelLike, keep: Mapping[str, np.ndarray]) -> keras.Model:
    """Return a copy of the same shape, in which some units or filters are always zero.

    Arguments and errors are those of `remove_units`.
    """
    return masked_units(maskable(model), keep)


def masked_units(im: InstrumentedModel, keep: Mapping[str, np.ndarray]) -> keras.Model:
    """Do the same as `mask_units` for a model that is already instrumented."""
    kernels = {}
    for operation in im.operations:
        if operation.kind == "weighted_sum" and not operation.name.endswith(":depthwise"):
            kernels[operation.layer] = operation.params
    masks: dict[str, np.ndarray] = {}
    recurrent = {o.layer: o.shape[-1] for o in im.operations if is_removable(o)}
    heads = {o.layer: o.keras_layer.num_heads for o in im.operations if has_heads(o)}
    unread = {name: np.asarray(mask, bool) for name, mask in keep.items() if name in heads}
    for name, mask in unread.items():
        _check_units(name, mask, heads[name])
    cleared = {name: np.asarray(mask, bool) for name, mask in keep.items() if name in recurrent}
    for name, mask in cleared.items():
        _check_units(name, mask, recurrent[name])
        masks |= candidate_masks(im, name, mask)
    for name, mask in keep.items():
        if name in cleared or name in unread:
            continue
        check_name("layer with a kernel", name, [*kernels, *recurrent])
        kernel = kernels[name]
        matrix = np.ones(kernel.matrix().shape, bool)
        _check_units(name, mask, matrix.shape[-1])
        masks[kernel.name] = kernel.to_kernel(matrix & np.asarray(mask, bool))
    copy = MaskPlan(im).apply(masks)
    if cleared:
        clear_biases(im.like(copy), cleared)
    clear_heads(copy, unread)
    return copy


def _check_units(name: str, mask: np.ndarray, units: int) -> None:
    if np.shape(mask) != (units,):
        raise InvalidArgumentError(
            f"The mask for layer '{name}' has shape {np.shape(mask)}; it has {units} units."
        )


def compact(model: ModelLike) -> keras.Model:
    """Return a copy without dead neurons that has the same outputs.

    Masks of the remaining weights are kept.

    Args:
        model: Any model that `InstrumentedModel` accepts, usually a pruned one; the copy of a
            subclassed model is functional.
    """
    im = maskable(model)
    graph = ChannelGraph(im)
    groups = channel_groups(graph)
    copy = without_groups(im, groups, _living(graph, groups))
    check_copy(im.functional, copy, list(im.input_shapes.values()), "compact copy")
    return copy


def without_groups(im: InstrumentedModel, groups: ChannelGroups, stays: np.ndarray) -> keras.Model:
    """Return a copy without some groups of channels; layers that read them have fewer inputs.

    Args:
        im: The model.
        groups: Its `channel_groups`.
        stays: Whether each group stays, bool `(groups,)`; operations keep at least one channel.
    """
    kept = {name: stays[numbers] for name, numbers in groups.of.items()}
    values: dict[int, np.ndarray] = {}
    configs: dict[int, dict[str, Any]] = {}
    for operation in im.operations:
        layer = operation.keras_layer
        if isinstance(layer, layers.Layer):
            cuts = _cuts(operation, kept)
            values |= _cut_values(layer, cuts)
            entries = {**_sizes(operation, kept), **_cut_masks(layer, cuts)}
            configs.setdefault(id(layer), {}).update(entries)
    return rebuild(im.functional, values, configs)


def compact_size(graph: ChannelGraph, groups: ChannelGroups) -> int:
    """Return the number of parameters that `compact` would leave, without building the copy.

    For trying many masks, since graph and groups do not depend on the weights.

    Args:
        graph: Channels of the masked model.
        groups: Its `channel_groups`.
    """
    return size_without_groups(graph.im, groups, _living(graph, groups))


def size_without_groups(im: InstrumentedModel, groups: ChannelGroups, stays: np.ndarray) -> int:
    """Return the number of parameters that `without_groups` would leave, given its arguments."""
    kept = {name: stays[numbers] for name, numbers in groups.of.items()}
    sizes: dict[int, int] = {}
    for operation in im.operations:
        layer = operation.keras_layer
        if isinstance(layer, layers.Layer):
            cuts = _cuts(operation, kept)
            for variable in layer.weights:
                if id(variable) in cuts or id(variable) not in sizes:
                    shape = list(variable.shape)
                    for axis, keep in cuts.get(id(variable), ()):
                        shape[axis] = int(keep.sum())
                    sizes[id(variable)] = math.prod(shape)
    return sum(sizes.values())


def _living(graph: ChannelGraph, groups: ChannelGroups) -> np.ndarray:
    """Mark the groups that matter, by going back from those that must stay."""
    zeros = graph.zeros()
    stays = groups.fixed.copy()
    before = -1
    while before != stays.sum():
        before = stays.sum()
        for operation in reversed(graph.im.operations):
            numbers = groups.of[operation.name]
            if not stays[numbers].any():
                stays[numbers[0]] = True
            if is_removable(operation):
                for source, weights in gate_reads(operation):
                    columns = weights.columns(weights.kernel.kernel())[:, stays[numbers]]
                    stays[groups.of[source][columns.any(axis=1) & ~zeros[source]]] = True
            if is_reader(operation) and operation.params.groups == 1:
                source = operation.inputs[0]
                weights = operation.params.matrix()[:, :, stays[numbers]]
                reads = weights.any(axis=(0, 2)) & ~zeros[source]
                stays[groups.of[source][reads]] = True
    return stays


def _recurrent_cuts(operation: Operation, kept: Mapping[str, np.ndarray]) -> dict[int, Cuts]:
    """Return how the variables of a gate's layer shrink: id of a variable → axes to cut."""
    units, cell = kept[operation.name], operation.keras_layer.cell
    cuts: dict[int, Cuts] = {}
    for source, weights in gate_reads(operation):
        gates = np.tile(units, weights.kernel.shape[-1] // len(units))
        cuts[id(weights.kernel.variable())] = [(-2, kept[source]), (-1, gates)]
        if cell.bias is not None:
            cuts[id(cell.bias)] = [(-1, gates)]
    return cuts


def _cuts(operation: Operation, kept: Mapping[str, np.ndarray]) -> dict[int, Cuts]:
    """Return how an operation's variables shrink: id of a variable → axes to cut."""
    if isinstance(operation.keras_layer, layers.RNN):
        return _recurrent_cuts(operation, kept) if is_removable(operation) else {}
    outputs = kept[operation.name]
    if has_heads(operation):
        return head_cuts(operation, outputs, kept[operation.inputs[0]])
    if operation.kind != "weighted_sum":
        variables = getattr(operation.keras_layer, "weights", [])
        is_sum = any(
            hasattr(operation.keras_layer, name) for name in ("kernel", "pointwise_kernel")
        )
        return {} if is_sum else {id(v): [(-1, outputs)] for v in variables if _fits(v, outputs)}
    inputs, kernel = kept[operation.inputs[0]], operation.params
    if kernel.axes == DEPTHWISE:
        cuts = {id(kernel.variable()): [(-2, inputs)]}
    elif kernel.groups > 1 or kernel.order:
        return {}
    elif kernel.axes == OUTPUTS_INPUTS:
        cuts = {id(kernel.variable()): [(-2, outputs), (-1, inputs)]}
    else:
        cuts = {id(kernel.variable()): [(-2, inputs), (-1, outputs)]}
    bias = kernel.bias()
    return cuts if bias is None else {**cuts, id(bias): [(-1, outputs)]}


def _fits(variable: keras.Variable, channels: np.ndarray) -> bool:
    return len(variable.shape) > 0 and variable.shape[-1] == len(channels)


def _cut(array: np.ndarray, cuts: Cuts) -> np.ndarray:
    for axis, keep in cuts:
        array = np.compress(keep, array, axis=axis)
    return array


def _cut_values(layer: layers.Layer, cuts: Mapping[int, Cuts]) -> dict[int, np.ndarray]:
    return {
        id(v): _cut(keras.ops.convert_to_numpy(v), cuts[id(v)])
        for v in layer.weights
        if id(v) in cuts
    }


def _cut_masks(layer: layers.Layer, cuts: Mapping[int, Cuts]) -> dict[str, Any]:
    """Return the layer's masks for the remaining weights; None where nothing is masked."""
    entries: dict[str, Any] = {}
    for slot in SLOTS:
        mask = read_mask(layer, slot)
        owner = next((v for v in layer.weights if v.constraint is getattr(layer, slot, 0)), None)
        if mask is not None and id(owner) in cuts:
            left = _cut(mask, cuts[id(owner)])
            constraint = getattr(layer, slot)
            whole = constraint.get_config()["other"]
            entries[slot] = whole if left.all() else serialized(left, constraint)
    return entries


def _sizes(operation: Operation, kept: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the entries of a layer's config that give its number of channels."""
    layer = operation.keras_layer
    count = int(kept[operation.name].sum())
    if is_removable(operation):
        return {"units": count}
    heads = head_of_channels(operation)
    if heads is not None:
        return {"num_heads": len(set(heads[kept[operation.name]]))}
    if isinstance(layer, layers.Reshape) and count < operation.shape[-1]:
        return {"target_shape": (*operation.shape[:-1], count)}
    if not is_reader(operation) or operation.params.order:
        return {}
    if not (isinstance(layer, layers.Dense) or hasattr(layer, "filters")):
        return {}
    return {"units": count} if isinstance(layer, layers.Dense) else {"filters": count}
