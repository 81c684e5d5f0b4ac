from .copies import copy_model
from .data import (
    Samples,
    batches,
    check_array,
    check_batch_size,
    count_samples,
    read_labelled,
)
from .graph import Graph
from .layers import register_layer
from .mean_offsets import masked_with_means
from .model import Activations, InstrumentedModel, instrumented
from .operations import KINDS, Affine, Elementwise, KernelLayout, Operation, Pooling, Step, Synapses

__all__ = [
    "KINDS",
    "Activations",
    "Affine",
    "Elementwise",
    "Graph",
    "InstrumentedModel",
    "KernelLayout",
    "Operation",
    "Pooling",
    "Samples",
    "Step",
    "Synapses",
    "batches",
    "check_array",
    "check_batch_size",
    "copy_model",
    "count_samples",
    "instrumented",
    "masked_with_means",
    "read_labelled",
    "register_layer",
]
