from . import attacks
from .adaptive.challenge import challenge
from .adaptive.table import ADAPTIVE_ATTACKS
from .baselines import EffectivePath, FeatureMap, LogitMargin
from .detector import Detector
from .evaluation import evaluate
from .evidence import Evidence
from .scorers import Scorer
from .slice_detector import PRESETS, SliceDetector
from .votes import Vote, VotingDetector

__all__ = [
    "ADAPTIVE_ATTACKS",
    "PRESETS",
    "Detector",
    "EffectivePath",
    "Evidence",
    "FeatureMap",
    "LogitMargin",
    "Scorer",
    "SliceDetector",
    "Vote",
    "VotingDetector",
    "attacks",
    "challenge",
    "evaluate",
]
