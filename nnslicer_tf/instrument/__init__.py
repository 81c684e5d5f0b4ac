"""Keras model → operations → activations."""

from nnslicer_tf.instrument.layers import register_layer
from nnslicer_tf.instrument.model import Activations, InstrumentedModel
from nnslicer_tf.instrument.operations import (
    KINDS,
    Affine,
    Elementwise,
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
    "Operation",
    "Pooling",
    "Step",
    "Synapses",
    "register_layer",
]
