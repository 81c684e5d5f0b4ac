from . import attacks, evaluation
from .adaptive.challenge import challenge
from .adaptive.problem import Effort, Problem, Tried
from .adaptive.result import ChallengeResult
from .adaptive.table import ADAPTIVE_ATTACKS, AdaptiveAttack
from .detector import Detector
from .effective_path import EffectivePath
from .evaluation import evaluate
from .evidence import Evidence
from .feature_map import FeatureMap
from .outlier_detector import OutlierDetector
from .presets import EVIDENCE, PRESETS
from .scorers import (
    ClassDistance,
    Identity,
    RidgeMargin,
    Scorer,
    TreeDisagreement,
)
from .slice_detector import SliceDetector
from .trivial import FlagEverything, LogitMargin
from .vector_detector import VectorDetector
from .votes import Features, Vote, VotingDetector

__all__ = [
    "ADAPTIVE_ATTACKS",
    "EVIDENCE",
    "PRESETS",
    "AdaptiveAttack",
    "ChallengeResult",
    "ClassDistance",
    "Detector",
    "EffectivePath",
    "Effort",
    "Evidence",
    "FeatureMap",
    "Features",
    "FlagEverything",
    "Identity",
    "LogitMargin",
    "OutlierDetector",
    "Problem",
    "RidgeMargin",
    "Scorer",
    "SliceDetector",
    "TreeDisagreement",
    "Tried",
    "VectorDetector",
    "Vote",
    "VotingDetector",
    "attacks",
    "challenge",
    "evaluate",
    "evaluation",
]
