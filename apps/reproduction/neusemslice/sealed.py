"""Incremental development with the outgoing weights of critical neurons frozen, too.

A reading of section 4.3 by which the new classes learn from the other neurons alone.
"""

from collections.abc import Iterable, Mapping

import keras
import numpy as np

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.ablated_network import maskable
from nnslicer_tf.instrument.recurrence import RECURRENCE
from nnslicer_tf.pruning.channels import ChannelGraph, is_reader
from nnslicer_tf.pruning.units import gate_reads, is_removable
from nnslicer_tf.semantic.neurons import check_critical, neuron_layers
from nnslicer_tf.semantic.selective_training import (
    free_neurons,
    parameter_masks,
    train_neurons,
)


def develop_sealed(
    model: keras.Model,
    critical: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    learned: Iterable[int],
    *,
    epochs: int,
    batch_size: int,
    rng: int = 0,
) -> keras.Model:
    """Return what `semantic.develop` does, with critical neurons' outgoing weights frozen."""
    im = maskable(model)
    free = free_neurons(im, critical, learned)
    options = {"epochs": epochs, "batch_size": batch_size, "rng": rng}
    return train_neurons(im, free, x, y, allowed=sealed_masks(im, free, critical), **options)


def sealed_masks(
    im: InstrumentedModel, neurons: Mapping[str, np.ndarray], sealed: Mapping[str, np.ndarray]
) -> dict[int, np.ndarray]:
    """Return the parameters of chosen neurons, as `parameter_masks`, that read no sealed neuron.

    A channel that combines several neurons (an addition's) is sealed if all of them are.
    """
    layers = neuron_layers(im, classes=True)
    check_critical(sealed, layers)
    frozen: dict[str, np.ndarray] = {}  # operation's name → bool (channels,)
    for name, mask in sealed.items():
        layer, units = layers[name], np.asarray(mask, bool)
        if layer.parts == "states":
            members = (o for o in im.operations if o.layer == name and o.kind == RECURRENCE)
            frozen |= {operation.name: units for operation in members}
        elif layer.parts == "heads":
            features = layer.chain[0].keras_layer.value_dim
            frozen[layer.chain[0].inputs[0]] = np.repeat(units, features)
        else:
            frozen[layer.sum] = units
    channels = ChannelGraph(im).affected(frozen)
    unread: dict[int, np.ndarray] = {}
    for operation in filter(is_reader, im.operations):
        kernel = operation.params
        if kernel.groups == 1:
            free = np.empty(kernel.matrix().shape, bool)
            free[:] = ~channels[operation.inputs[0]][:, None]
            unread[id(kernel.variable())] = kernel.to_kernel(free)
    for operation in filter(is_removable, im.operations):
        for source, weights in gate_reads(operation):
            kernel = weights.kernel
            free = unread.setdefault(id(kernel.variable()), np.ones(kernel.shape, bool))
            free[:, weights.start : weights.stop] &= ~channels[source][:, None]
    return {key: m & unread.get(key, True) for key, m in parameter_masks(im, neurons).items()}
