from .constraints import Blackout, Constraint, Occlusion
from .coverage import Coverage, NeuronCoverage, TopKCoverage
from .deepgauge import BoundaryCoverage, KMultisectionCoverage, NeuronRanges
from .differences import Differences
from .generation import generate

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
