from .activations import Activations
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
from .inputs import Inputs, SeveralSamples
from .layers import LayerSupport, adds_table, layer_support, register_layer
from .mean_offsets import masked_with_means
from .model import InstrumentedModel, instrumented
from .operations import (
    KINDS,
    NO_MASK,
    Affine,
    Elementwise,
    KernelLayout,
    Lookup,
    MaskOf,
    Operation,
    PaddingOf,
    Pooling,
    ProductSum,
    Softmax,
    Step,
    Synapses,
)

__all__ = [
    "KINDS",
    "NO_MASK",
    "Activations",
    "Affine",
    "Elementwise",
    "Graph",
    "Inputs",
    "InstrumentedModel",
    "KernelLayout",
    "LayerSupport",
    "Lookup",
    "MaskOf",
    "Operation",
    "PaddingOf",
    "Pooling",
    "ProductSum",
    "Samples",
    "SeveralSamples",
    "Softmax",
    "Step",
    "Synapses",
    "adds_table",
    "batches",
    "check_array",
    "check_batch_size",
    "copy_model",
    "count_samples",
    "instrumented",
    "layer_support",
    "masked_with_means",
    "read_labelled",
    "register_layer",
]
