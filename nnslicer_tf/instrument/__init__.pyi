from .activations import Activations
from .copies import check_copy, check_copyable, copy_model, rebuild
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
from .masked import MaskedModel, check_masks, masked_copy
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
    "MaskedModel",
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
    "check_copy",
    "check_copyable",
    "check_masks",
    "copy_model",
    "count_samples",
    "instrumented",
    "layer_support",
    "masked_copy",
    "read_labelled",
    "rebuild",
    "register_layer",
]
