from . import attacks
from .detector import Detector, LogitMargin, ReconstructionError, evaluate
from .evidence import Evidence
from .scorers import Scorer
from .slice_detector import PRESETS, SliceDetector
from .votes import Vote, VotingDetector

__all__ = [
    "PRESETS",
    "Detector",
    "Evidence",
    "LogitMargin",
    "ReconstructionError",
    "Scorer",
    "SliceDetector",
    "Vote",
    "VotingDetector",
    "attacks",
    "evaluate",
]
