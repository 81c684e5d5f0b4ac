"""Masked and restructured models (section 4.1).

Masking a neuron sets its parameters, and thus its value, to zero. Restructuring removes it with its
normalisation and the weights that read it; the outputs are the same.
"""

from collections.abc import Mapping
from functools import cached_property

import keras
import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.masked import maskable
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning.channels import ChannelGraph
from nnslicer_tf.pruning.groups import channel_groups
from nnslicer_tf.pruning.masks import MaskedPredictor
from nnslicer_tf.pruning.removal import compact, living_groups, mask_units, size_without_groups
from nnslicer_tf.semantic.neurons import check_critical, neuron_layers


class Masker:
    """Applies masks to a reusable working copy of a model, without rebuilding or recompiling it.

    `neurons` and `kernels` return the same model; the next mask changes it.

    Args:
        model: A Keras model; it is not changed.

    Raises:
        UnsupportedLayerError: if `InstrumentedModel` does not support the model, or it cannot be
            copied.
    """

    def __init__(self, model: ModelLike) -> None:
        self._masked = MaskedPredictor(model)
        self._im = self._masked.im

    def neurons(self, critical: Mapping[str, np.ndarray]) -> keras.Model:
        """Return the working copy with all but the critical neurons masked.

        Args:
            critical: Layer → bool array `(units,)`; layers that are not named are unchanged.

        Raises:
            InvalidArgumentError: if the masks do not match the model's layers.
        """
        return self._masked.model(*self._masks(critical))

    def size(self, critical: Mapping[str, np.ndarray]) -> int:
        """Return the number of parameters that `restructure` leaves, without building a model."""
        copy, graph, groups = self._measured  # whose graph is analysed without masks
        copy.model(*self._masks(critical))
        return size_without_groups(graph.im, groups, living_groups(graph, groups))

    def kernels(self, keep: Mapping[str, np.ndarray]) -> keras.Model:
        """Return the working copy with masked kernels.

        Args:
            keep: Kernel's name → bool array of its shape, False for weights to set to zero.

        Raises:
            InvalidArgumentError: if there is no such kernel, or its shape differs.
        """
        return self._masked.model(keep)

    def _masks(self, critical: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list]:
        """Return the masks of kernels and of other variables that keep only critical neurons."""
        layers = neuron_layers(self._im)
        check_critical(critical, layers)
        keep: dict[str, np.ndarray] = {}
        biases = []
        for name, mask in critical.items():
            keep |= layers[name].kernel_masks(mask)
            biases += layers[name].bias_masks(mask)
        return keep, biases

    @cached_property
    def _measured(self) -> tuple:
        """A second working copy, so that `size` does not change the first, and its channels."""
        copy = MaskedPredictor(self._im)
        graph = ChannelGraph(self._im.like(copy.model({})))
        return copy, graph, channel_groups(graph)


def restructure(model: ModelLike, critical: Mapping[str, np.ndarray]) -> keras.Model:
    """Return a smaller model with only the critical neurons (section 4.1).

    Its outputs are those of the model with the other neurons masked. Masked neurons that cannot be
    removed, such as those that are added to critical ones, remain as zeros.

    Args:
        model: A Keras model; it is not changed.
        critical: Layer → bool array `(units,)`; layers that are not named are unchanged.

    Raises:
        InvalidArgumentError: if the masks do not match the model's layers, or leave a layer without
            neurons.
    """
    im = maskable(model)
    check_critical(critical, neuron_layers(im))
    for name, mask in critical.items():
        if not mask.any():
            raise InvalidArgumentError(
                f"Layer '{name}' would have no neurons left. Keep at least one."
            )
    return compact(im.like(mask_units(im, critical)))
