from .copies import copy_model
from .data import Samples, batches, check_array, check_batch_size, count_samples
from .graph import Graph
from .inputs import Inputs, SeveralSamples
from .layers import register_layer
from .mean_offsets import masked_with_means
from .model import Activations, InstrumentedModel
from .operations import KINDS, Affine, Elementwise, KernelLayout, Operation, Pooling, Step, Synapses

__all__ = [
    "KINDS",
    "Activations",
    "Affine",
    "Elementwise",
    "Graph",
    "Inputs",
    "InstrumentedModel",
    "KernelLayout",
    "Operation",
    "Pooling",
    "Samples",
    "SeveralSamples",
    "Step",
    "Synapses",
    "batches",
    "check_array",
    "check_batch_size",
    "copy_model",
    "count_samples",
    "masked_with_means",
    "register_layer",
]
