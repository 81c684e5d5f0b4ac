from . import attacks, evaluation
from .detector import Detector
from .effective_path import EffectivePath
from .evaluation import evaluate
from .evidence import Evidence
from .feature_map import FeatureMap
from .presets import PRESETS
from .scorers import ClassDistance, Identity, RidgeMargin, Scorer, TreeDisagreement
from .slice_detector import SliceDetector
from .trivial import FlagEverything, LogitMargin
from .vector_detector import VectorDetector
from .votes import DrawnColumns, Features, Vote, VotingDetector

__all__ = [
    "PRESETS",
    "ClassDistance",
    "Detector",
    "DrawnColumns",
    "EffectivePath",
    "Evidence",
    "FeatureMap",
    "Features",
    "FlagEverything",
    "Identity",
    "LogitMargin",
    "RidgeMargin",
    "Scorer",
    "SliceDetector",
    "TreeDisagreement",
    "VectorDetector",
    "Vote",
    "VotingDetector",
    "attacks",
    "evaluate",
    "evaluation",
]
