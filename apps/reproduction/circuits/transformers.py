"""Planted circuits in transformers: copy, induction, first of kind."""

from reproduction.circuits.finding import compare
from reproduction.circuits.settings import TransformerCircuitSettings
from reproduction.circuits.transformer_networks import CIRCUITS, plant
from reproduction.result import ExperimentResult


def transformers(s: TransformerCircuitSettings) -> ExperimentResult:
    """Compare slices at several θ with gradients, integrated gradients and magnitudes."""
    return compare("transformer", CIRCUITS, plant, s, "dead channels and units, 10 tokens")
