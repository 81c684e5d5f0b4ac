from .activations import Activations
from .copies import copy_model
from .layers import adds_table, layer_support, register_layer
from .loading import load_model
from .masked import MaskedModel, masked_copy
from .model import InstrumentedModel, instrumented
from .operations import KINDS, Affine, Elementwise, MaskOf, Operation, Pooling, Step, Synapses

__all__ = [
    "KINDS",
    "Activations",
    "Affine",
    "Elementwise",
    "InstrumentedModel",
    "MaskOf",
    "MaskedModel",
    "Operation",
    "Pooling",
    "Step",
    "Synapses",
    "adds_table",
    "copy_model",
    "instrumented",
    "layer_support",
    "load_model",
    "masked_copy",
    "register_layer",
]
