from .copies import copy_model
from .layers.embeddings import adds_table
from .layers.registry import register_layer
from .layers.support import layer_support
from .loading import load_model
from .masked import MaskedModel
from .model import InstrumentedModel, instrumented
from .operations import KINDS, Affine, Elementwise, MaskOf, Operation, Pooling, Step, Synapses

__all__ = [
    "KINDS",
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
    "register_layer",
]
