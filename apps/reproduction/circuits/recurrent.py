"""Planted circuits in recurrent networks: parity, a counter, first of kind."""

from reproduction.circuits.finding import compare
from reproduction.circuits.recurrent_networks import CIRCUITS, plant
from reproduction.circuits.settings import RecurrentCircuitSettings
from reproduction.result import ExperimentResult


def recurrent(s: RecurrentCircuitSettings) -> ExperimentResult:
    """Compare slices at several θ with gradients, integrated gradients and magnitudes."""
    return compare("recurrent", CIRCUITS, plant, s, "dead units, 10 steps")
