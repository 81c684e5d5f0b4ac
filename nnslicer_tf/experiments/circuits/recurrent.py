"""Planted circuits in recurrent networks: parity, a counter, first of kind."""

from nnslicer_tf.experiments.circuits.finding import compare
from nnslicer_tf.experiments.circuits.recurrent_networks import CIRCUITS, plant
from nnslicer_tf.experiments.circuits.settings import RecurrentCircuitSettings
from nnslicer_tf.experiments.result import ExperimentResult


def recurrent(s: RecurrentCircuitSettings) -> ExperimentResult:
    """Compare slices at several θ with gradients, integrated gradients and magnitudes."""
    return compare("recurrent", CIRCUITS, plant, s, "dead units, 10 steps")
