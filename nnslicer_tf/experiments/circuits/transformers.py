"""Planted circuits in transformers: copy, induction, first of kind."""

from nnslicer_tf.experiments.circuits.finding import compare
from nnslicer_tf.experiments.circuits.settings import TransformerCircuitSettings
from nnslicer_tf.experiments.circuits.transformer_networks import CIRCUITS, plant
from nnslicer_tf.experiments.result import ExperimentResult


def transformers(s: TransformerCircuitSettings) -> ExperimentResult:
    """Compare slices at several θ with gradients, integrated gradients and magnitudes."""
    return compare("transformer", CIRCUITS, plant, s, "dead channels and units, 10 tokens")
