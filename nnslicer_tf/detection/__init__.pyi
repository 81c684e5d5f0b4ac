from . import attacks
from .adaptive.challenge import challenge
from .adaptive.table import ADAPTIVE_ATTACKS
from .detector import Detector, LogitMargin
from .evaluation import evaluate
from .evidence import Evidence
from .scorers import Scorer
from .slice_detector import PRESETS, SliceDetector
from .votes import Vote, VotingDetector

__all__ = [
    "ADAPTIVE_ATTACKS",
    "PRESETS",
    "Detector",
    "Evidence",
    "LogitMargin",
    "Scorer",
    "SliceDetector",
    "Vote",
    "VotingDetector",
    "attacks",
    "challenge",
    "evaluate",
]
