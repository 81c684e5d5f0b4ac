"""Physical removal of dead neurons: smaller kernels with the same outputs.

A channel (a filter or a unit) is removed if it is zero for every input, or if no living channel
reads it, with its normalisation, depthwise kernel and PReLU, and its rows in kernels that read it,
even through pooling, `Flatten`, padding, `Concatenate` and merges. Recurrent units and attention
heads are removed in the same way.

Limits: channels that are added to each other are removed only together. Channels next to reshapes
that move channels, grouped convolutions, layer normalisation and custom layers stay, and so does at
least one in every layer. A constant neuron that is not zero is not dead.
"""

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

from nnslicer_tf._checks import as_mask, check_name
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Ablation, InstrumentedModel, ModelLike, Operation, Zero
from nnslicer_tf.instrument.ablated_network import maskable
from nnslicer_tf.instrument.copies import check_copy, rebuild
from nnslicer_tf.instrument.layout import DEPTHWISE, OUTPUTS_INPUTS, WEIGHT
from nnslicer_tf.pruning import units as unit_parts
from nnslicer_tf.pruning.channels import ChannelGraph, is_reader
from nnslicer_tf.pruning.groups import ChannelGroups, channel_groups
from nnslicer_tf.pruning.masks import SLOTS, read_mask, serialized, weight_masks
from nnslicer_tf.pruning.units import gate_reads, has_heads, is_removable

Cuts = list[tuple[int, np.ndarray]]  # axis, what to keep along it


def remove_units(model: ModelLike, keep: Mapping[str, np.ndarray]) -> keras.Model:
    """Return a smaller copy without some units or filters, and without all that depends on them.

    The outputs are the same as if the removed units were always zero, after any normalisation.

    Args:
        model: Any that `InstrumentedModel` accepts; the copy of a subclassed one is functional.
        keep: Name of a layer with a kernel → bool array `(units,)`, false for the units or filters
            to remove (for a separable convolution, those of its pointwise part; for attention, its
            heads, those of the keys in a `GroupQueryAttention`). Other layers lose only units that
            are dead without these.

    Raises InvalidArgumentError if there is no such layer, or it has a different number of units;
    UnsupportedLayerError if a layer cannot be masked (see `apply_masks`).
    """
    im = maskable(model)
    return compact(im.like(mask_units(im, keep)))


def mask_units(
    model: ModelLike, keep: Mapping[str, np.ndarray], into: keras.Model | None = None
) -> keras.Model:
    """Return a copy in which units or filters are always zero; arguments as in `remove_units`.

    `into` is a model from an earlier call, whose weights are replaced in place of a new copy.
    """
    im = maskable(model)
    kernels = {
        o.layer: o.params
        for o in im.operations
        if o.kind == "weighted_sum" and not o.name.endswith(":depthwise")
    }
    recurrent = {o.layer: o for o in im.operations if is_removable(o)}
    heads = {o.layer: o.keras_layer for o in im.operations if has_heads(o)}
    masks: dict[str, np.ndarray] = {}
    # Of other variables: candidates' biases in recurrent layers, and the weights that read heads.
    factors: list[tuple[keras.Variable, np.ndarray]] = []
    for name, values in keep.items():
        mask = as_mask(name, values)
        if name in heads:
            units = unit_parts.count_heads(heads[name])
        elif name in recurrent:
            units = recurrent[name].shape[-1]
        else:
            check_name("layer with a kernel", name, [*kernels, *recurrent])
            units = kernels[name].matrix().shape[-1]
        if mask.shape != (units,):
            raise InvalidArgumentError(
                f"The mask for layer '{name}' has shape {mask.shape}, not ({units},)."
            )
        if name in heads:
            kernel = heads[name]._output_dense.kernel
            of_heads = np.repeat(mask, kernel.shape[0] // units)
            factors.append((kernel, np.broadcast_to(of_heads[:, None, None], kernel.shape)))
        elif name in recurrent:
            masks |= unit_parts.candidate_masks(im, name, mask)
            cell = recurrent[name].keras_layer.cell
            if cell.bias is not None:  # of the candidates, which follow two gates or none
                of_bias = np.ones(cell.bias.shape, bool)
                place = 2 * cell.units if hasattr(cell, "recurrent_activation") else 0
                of_bias[..., place : place + cell.units] &= mask
                factors.append((cell.bias, of_bias))
        else:
            whole = np.ones(kernels[name].matrix().shape, bool)
            masks[kernels[name].name] = kernels[name].to_kernel(whole & mask)
    return Ablation(im, Zero(), WEIGHT).model(weight_masks(im, masks, factors), into)


def compact(model: ModelLike) -> keras.Model:
    """Return a copy without dead neurons that has the same outputs; other masks persist.

    The copy of a subclassed model is functional.
    """
    im = maskable(model)
    graph = ChannelGraph(im)
    groups = channel_groups(graph)
    copy = without_groups(im, groups, living_groups(graph, groups))
    check_copy(im.functional, copy, list(im.input_shapes.values()), "compact copy")
    return copy


def without_groups(im: InstrumentedModel, groups: ChannelGroups, stays: np.ndarray) -> keras.Model:
    """Return a copy without groups of channels, except those in `stays`, bool `(groups,)`."""
    kept = {name: stays[numbers] for name, numbers in groups.of.items()}
    values: dict[int, np.ndarray] = {}
    configs: dict[int, dict[str, Any]] = {}
    for operation in im.operations:
        layer = operation.keras_layer
        if not isinstance(layer, layers.Layer):
            continue
        cuts = _cuts(operation, kept)
        config = configs.setdefault(id(layer), {})
        config.update(_sizes(operation, kept))
        for variable in layer.weights:
            if id(variable) in cuts:
                value = keras.ops.convert_to_numpy(variable)
                values[id(variable)] = _cut(value, cuts[id(variable)])
        for slot in SLOTS:  # the masks of the remaining weights
            mask = read_mask(layer, slot)
            constraint: Any = getattr(layer, slot, 0)
            owner = next((v for v in layer.weights if v.constraint is constraint), None)
            if mask is not None and id(owner) in cuts:
                mask = _cut(mask, cuts[id(owner)])
                whole = constraint.get_config()["other"]
                config[slot] = whole if mask.all() else serialized(mask, constraint)
    return rebuild(im.functional, values, configs)


def size_without_groups(im: InstrumentedModel, groups: ChannelGroups, stays: np.ndarray) -> int:
    """Return the number of parameters that `without_groups` would leave."""
    kept = {name: stays[numbers] for name, numbers in groups.of.items()}
    cuts: dict[int, Cuts] = {}
    for operation in im.operations:
        if isinstance(operation.keras_layer, layers.Layer):
            cuts |= _cuts(operation, kept)
    total = 0
    for variable in im.functional.weights:
        shape = list(variable.shape)
        for axis, keep in cuts.get(id(variable), ()):
            shape[axis] = int(keep.sum())
        total += math.prod(shape)
    return total


def living_groups(graph: ChannelGraph, groups: ChannelGroups) -> np.ndarray:
    """Mark the groups that `compact` keeps, by going back from those that must stay."""
    zeros = graph.zeros()
    stays = groups.fixed.copy()
    before = -1
    while before != stays.sum():
        before = stays.sum()
        for operation in reversed(graph.im.operations):
            numbers = groups.of[operation.name]
            if not stays[numbers].any():
                stays[numbers[0]] = True
            reads = [(s, w.columns(w.kernel.kernel())[None]) for s, w in gate_reads(operation)]
            if is_reader(operation) and operation.params.groups == 1:
                reads.append((operation.inputs[0], operation.params.matrix()))
            for source, matrix in reads:
                is_read = matrix[:, :, stays[numbers]].any(axis=(0, 2)) & ~zeros[source]
                stays[groups.of[source][is_read]] = True
    return stays


def _cuts(operation: Operation, kept: Mapping[str, np.ndarray]) -> dict[int, Cuts]:
    """Return the axes to cut of an operation's variables, by the variables' ids."""
    layer, outputs = operation.keras_layer, kept[operation.name]
    if isinstance(layer, layers.RNN):
        cuts: dict[int, Cuts] = {}
        for source, weights in gate_reads(operation):
            gates = np.tile(outputs, weights.kernel.shape[-1] // len(outputs))
            cuts[id(weights.kernel.variable())] = [(-2, kept[source]), (-1, gates)]
            if layer.cell.bias is not None:
                cuts[id(layer.cell.bias)] = [(-1, gates)]
        return cuts
    if has_heads(operation):
        return unit_parts.head_cuts(operation, outputs, kept[operation.inputs[0]])
    if operation.kind != "weighted_sum":
        if hasattr(layer, "kernel") or hasattr(layer, "pointwise_kernel"):
            return {}
        variables = [v for v in getattr(layer, "weights", []) if len(v.shape)]
        return {id(v): [(-1, outputs)] for v in variables if v.shape[-1] == len(outputs)}
    inputs, kernel = kept[operation.inputs[0]], operation.params
    if kernel.axes != DEPTHWISE and (kernel.groups > 1 or kernel.order):
        return {}
    of_axes = {DEPTHWISE: [(-2, inputs)], OUTPUTS_INPUTS: [(-2, outputs), (-1, inputs)]}
    cuts = {id(kernel.variable()): of_axes.get(kernel.axes, [(-2, inputs), (-1, outputs)])}
    bias = kernel.bias()
    return cuts if bias is None else {**cuts, id(bias): [(-1, outputs)]}


def _cut(array: np.ndarray, cuts: Cuts) -> np.ndarray:
    for axis, keep in cuts:
        array = np.compress(keep, array, axis=axis)
    return array


def _sizes(operation: Operation, kept: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the entries of a layer's config that give its number of channels."""
    layer = operation.keras_layer
    count = int(kept[operation.name].sum())
    if is_removable(operation):
        return {"units": count}
    heads = unit_parts.head_of_channels(operation)
    if heads is not None:
        left = len(set(heads[kept[operation.name]]))
        if not hasattr(layer, "num_key_value_heads"):
            return {"num_heads": left}
        shared = layer.num_query_heads // layer.num_key_value_heads
        return {"num_key_value_heads": left, "num_query_heads": left * shared}
    if isinstance(layer, layers.Normalization):  # constants, such as the means of a pruned layer
        return {
            name: np.compress(kept[operation.name], value, axis=-1).tolist()
            for name, value in (("mean", layer.input_mean), ("variance", layer.input_variance))
            if np.ndim(value) and np.shape(value)[-1] == operation.shape[-1]
        }
    if isinstance(layer, layers.Reshape) and count < operation.shape[-1]:
        return {"target_shape": (*operation.shape[:-1], count)}
    if is_reader(operation) and not operation.params.order:
        if isinstance(layer, layers.Dense):
            return {"units": count}
        if hasattr(layer, "filters"):
            return {"filters": count}
    return {}
