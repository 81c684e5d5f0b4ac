"""Masked and restructured models (section 4.1).

Masking a neuron sets its parameters, and thus its value, to zero. Restructuring removes it:
its row of weights, its normalisation, and the weights that read it. The outputs are the same.
"""

from collections.abc import Mapping
from functools import cached_property

import keras
import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.copies import copy_model
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning.channels import ChannelGraph
from nnslicer_tf.pruning.groups import ChannelGroups, channel_groups
from nnslicer_tf.pruning.masks import MaskPlan, check_masks
from nnslicer_tf.pruning.removal import compact, compact_size, masked_units
from nnslicer_tf.semantic.neurons import check_critical, neuron_layers


class Masker:
    """Applies masks to a reusable working copy of a model.

    This is cheaper than a new model for each of many masks, as nothing is rebuilt or recompiled.
    `neurons` and `kernels` return the same model; the next mask changes it.

    Args:
        model: A Keras model; it is not changed.

    Raises:
        UnsupportedLayerError: if `InstrumentedModel` does not support the model.
    """

    def __init__(self, model: ModelLike) -> None:
        self._im = instrumented(model)
        self._plan = MaskPlan(self._im)
        model = self._im.model
        self._working = copy_model(model)
        self._weights = model.get_weights()
        self._places = {id(variable): i for i, variable in enumerate(model.weights)}

    def neurons(self, critical: Mapping[str, np.ndarray]) -> keras.Model:
        """Return the working copy with all but the critical neurons masked.

        Args:
            critical: Layer → bool array `(units,)`; layers that are not named are unchanged.

        Raises:
            InvalidArgumentError: if the masks do not match the model's layers.
        """
        self._working.set_weights(self._masked_neurons(critical))
        return self._working

    def size(self, critical: Mapping[str, np.ndarray]) -> int:
        """Return the number of parameters of the restructured model, without building it.

        Arguments and errors are those of `neurons`.
        """
        self._measured.set_weights(self._masked_neurons(critical))
        return compact_size(*self._channels)

    def kernels(self, keep: Mapping[str, np.ndarray]) -> keras.Model:
        """Return the working copy with masked kernels.

        Args:
            keep: Kernel's name → bool array of its shape, False for weights to set to zero.

        Raises:
            InvalidArgumentError: if there is no such kernel, or its shape differs.
        """
        self._working.set_weights(self._masked(keep))
        return self._working

    def _masked_neurons(self, critical: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the model's weights with all but the critical neurons masked."""
        layers = neuron_layers(self._im)
        check_critical(critical, layers)
        chosen: dict[str, np.ndarray] = {}
        for name, mask in critical.items():
            chosen |= layers[name].kernel_masks(mask)
        weights = self._masked(chosen)
        for name, mask in critical.items():
            for bias, kept in layers[name].bias_masks(mask):
                weights[self._places[id(bias)]] = weights[self._places[id(bias)]] * kept
        return weights

    def _masked(self, keep: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the model's weights with masked kernels."""
        weights = list(self._weights)
        for variable, value in self._plan.values(check_masks(self._im, keep)).items():
            weights[self._places[variable]] = value
        return weights

    @cached_property
    def _measured(self) -> keras.Model:
        """A second working copy, so that `size` leaves the one that was returned as it is."""
        return copy_model(self._im.model)

    @cached_property
    def _channels(self) -> tuple[ChannelGraph, ChannelGroups]:
        graph = ChannelGraph(self._im.like(self._measured))
        return graph, channel_groups(graph)


def restructure(model: ModelLike, critical: Mapping[str, np.ndarray]) -> keras.Model:
    """Return a smaller model with only the critical neurons (section 4.1).

    Its outputs are those of the model with the other neurons masked. Masked neurons that cannot
    be removed, such as those that are added to critical ones, remain as zeros.

    Args:
        model: A Keras model; it is not changed.
        critical: Layer → bool array `(units,)`, from `semantic_slice`; layers that are not
            named are unchanged.

    Raises:
        InvalidArgumentError: if the masks do not match the model's layers, or leave a layer
            without neurons.
    """
    im = instrumented(model)
    check_critical(critical, neuron_layers(im))
    for name, mask in critical.items():
        if not mask.any():
            raise InvalidArgumentError(
                f"Layer '{name}' would have no neurons left. Keep at least one."
            )
    return compact(im.like(masked_units(im, critical)))
