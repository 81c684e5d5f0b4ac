from .constraints import Blackout, Constraint, Occlusion
from .coverage import Coverage, NeuronCoverage, TopKCoverage
from .deepgauge import BoundaryCoverage, KMultisectionCoverage, NeuronRanges
from .generation import Differences, generate

__all__ = [
    "Blackout",
    "BoundaryCoverage",
    "Constraint",
    "Coverage",
    "Differences",
    "KMultisectionCoverage",
    "NeuronCoverage",
    "NeuronRanges",
    "Occlusion",
    "TopKCoverage",
    "generate",
]
