from .ablation import Ablation
from .copies import copy_model
from .data import DataLike
from .layers import register_layer
from .loading import load_model
from .model import InstrumentedModel, ModelLike, instrumented
from .operations import KINDS, Affine, Elementwise, MaskOf, Operation, Pooling, Step, Synapses
from .references import Mean, Samples, Weights, Zero

__all__ = [
    "KINDS",
    "Ablation",
    "Affine",
    "DataLike",
    "Elementwise",
    "InstrumentedModel",
    "MaskOf",
    "Mean",
    "ModelLike",
    "Operation",
    "Pooling",
    "Samples",
    "Step",
    "Synapses",
    "Weights",
    "Zero",
    "copy_model",
    "instrumented",
    "load_model",
    "register_layer",
]
