"""Semantic slicing of neurons, and model maintenance based on it (NeuSemSlice).

    critical = semantic_slice(im, x, y, metric="taylor", threshold=0.95)
    small = restructure(model, critical)  # only the critical neurons
    robust = readapt(model, critical, x, y, adversarial)  # train only these
    wider = develop(model, critical, new_x, new_y, learned=range(5))  # train the others

`SemanticSlicer` tries many thresholds at the cost of one; `METRICS` are the contribution
metrics; `deeparc` is the layer-level baseline; `compress` iterates one of `COMPRESSORS`;
`experiments.neusemslice` runs the paper's experiments.
"""

from nnslicer_tf._training import selective_optimizer
from nnslicer_tf.semantic.comparison import Comparison, area_under, compare, paired
from nnslicer_tf.semantic.deeparc import (
    layer_similarities,
    redundant_layers,
    removable_layers,
    remove_layers,
)
from nnslicer_tf.semantic.maintenance import (
    develop,
    developed_neurons,
    readapt,
    readapted_neurons,
)
from nnslicer_tf.semantic.metrics import METRICS, Metric, contributions
from nnslicer_tf.semantic.neurons import (
    CriticalNeurons,
    NeuronLayer,
    neuron_layers,
    output_layer,
)
from nnslicer_tf.semantic.restructuring import Masker, restructure
from nnslicer_tf.semantic.selective_training import (
    parameter_share,
    train_neurons,
)
from nnslicer_tf.semantic.similarity import centre, landscape, prefix_similarities, similarity
from nnslicer_tf.semantic.slicer import (
    SemanticSlicer,
    category_slice,
    global_slice,
    semantic_slice,
)
from nnslicer_tf.semantic.weight_pruning import (
    COMPRESSORS,
    Compression,
    compress,
    erk,
    global_magnitude,
    lamp,
    uniform_plus,
)

__all__ = [
    "COMPRESSORS",
    "METRICS",
    "Comparison",
    "Compression",
    "CriticalNeurons",
    "Masker",
    "Metric",
    "NeuronLayer",
    "SemanticSlicer",
    "area_under",
    "category_slice",
    "centre",
    "compare",
    "compress",
    "contributions",
    "develop",
    "developed_neurons",
    "erk",
    "global_magnitude",
    "global_slice",
    "lamp",
    "landscape",
    "layer_similarities",
    "neuron_layers",
    "output_layer",
    "paired",
    "parameter_share",
    "prefix_similarities",
    "readapt",
    "readapted_neurons",
    "redundant_layers",
    "removable_layers",
    "remove_layers",
    "restructure",
    "selective_optimizer",
    "semantic_slice",
    "similarity",
    "train_neurons",
    "uniform_plus",
]
