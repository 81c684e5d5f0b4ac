"""Semantic slicing of neurons, and model maintenance based on it (NeuSemSlice).

    critical = SemanticSlicer(im, x, y, metric="taylor").semantic_slice(0.95)
    small = restructure(model, critical)  # only the critical neurons
    robust = readapt(model, critical, x, y, adversarial)  # train only these
    wider = develop(model, critical, new_x, new_y, learned=range(5))  # train the others

`METRICS` are the contribution metrics.
"""

from nnslicer_tf._faces import explain_all
from nnslicer_tf.semantic.metrics import METRICS, Metric, contributions
from nnslicer_tf.semantic.neurons import CriticalNeurons, masked, restructure
from nnslicer_tf.semantic.selective_training import develop, parameter_share, readapt, train_neurons
from nnslicer_tf.semantic.slicer import SemanticSlicer

__all__ = ["METRICS", "CriticalNeurons", "Metric", "SemanticSlicer", "contributions", "develop"]
__all__ += ["masked", "parameter_share", "readapt", "restructure", "train_neurons"]
explain_all(globals())
