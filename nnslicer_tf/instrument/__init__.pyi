from .ablation import Ablation
from .copies import copy_model
from .layers import register_layer
from .layers.embeddings import adds_table
from .loading import load_model
from .model import InstrumentedModel, instrumented
from .operations import KINDS, Affine, Elementwise, MaskOf, Operation, Pooling, Step, Synapses
from .references import Mean, Samples, Weights, Zero

__all__ = [
    "KINDS",
    "Ablation",
    "Affine",
    "Elementwise",
    "InstrumentedModel",
    "MaskOf",
    "Mean",
    "Operation",
    "Pooling",
    "Samples",
    "Step",
    "Synapses",
    "Weights",
    "Zero",
    "adds_table",
    "copy_model",
    "instrumented",
    "load_model",
    "register_layer",
]
