"""Masked and restructured models (NeuSemSlice, section 4.1)."""

from collections.abc import Mapping

import keras
import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import ModelLike
from nnslicer_tf.instrument.ablated_network import maskable
from nnslicer_tf.pruning.removal import mask_units, remove_units
from nnslicer_tf.semantic.neurons import check_critical, neuron_layers


def masked(
    model: ModelLike, critical: Mapping[str, np.ndarray], into: keras.Model | None = None
) -> keras.Model:
    """Return a copy of a model with all but the critical neurons masked (section 4.1).

    Masking a neuron sets its parameters, and thus its value, to zero.

    Args:
        model: A Keras model; it is not changed.
        critical: Layer → bool array `(units,)`; layers that are not named are unchanged.
        into: A model from an earlier call, whose weights are replaced in place of a new copy.

    Raises:
        InvalidArgumentError: if the masks do not match the model's layers.
        UnsupportedLayerError: if the model cannot be copied.
    """
    im = maskable(model)
    return mask_units(im, check_critical(critical, neuron_layers(im)), into)


def restructure(model: ModelLike, critical: Mapping[str, np.ndarray]) -> keras.Model:
    """Return a smaller model with only the critical neurons (section 4.1).

    The others are removed with their normalisation and the weights that read them; the outputs are
    those of the model with these neurons masked. Masked neurons that cannot be
    removed, such as those that are added to critical ones, remain as zeros.

    Arguments are those of `masked`.

    Raises:
        InvalidArgumentError: if the masks do not match the layers, or leave one without neurons.
    """
    im = maskable(model)
    critical = check_critical(critical, neuron_layers(im))
    for name, mask in critical.items():
        if not mask.any():
            raise InvalidArgumentError(f"Layer '{name}' would have no neurons. Keep at least one.")
    return remove_units(im, critical)
