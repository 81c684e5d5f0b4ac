"""Keras model → operations → activations."""

from nnslicer_tf.instrument._data import batches, check_array, count_samples
from nnslicer_tf.instrument.copies import copy_model
from nnslicer_tf.instrument.layers import register_layer
from nnslicer_tf.instrument.model import Activations, InstrumentedModel
from nnslicer_tf.instrument.operations import (
    KINDS,
    Affine,
    Elementwise,
    KernelLayout,
    Operation,
    Pooling,
    Step,
    Synapses,
)

__all__ = [
    "KINDS",
    "Activations",
    "Affine",
    "Elementwise",
    "InstrumentedModel",
    "KernelLayout",
    "Operation",
    "Pooling",
    "Step",
    "Synapses",
    "batches",
    "check_array",
    "copy_model",
    "count_samples",
    "register_layer",
]
