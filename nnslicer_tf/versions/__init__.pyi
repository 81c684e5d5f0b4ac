from .comparison import VersionComparison, compare
from .flips import FlipCauses, explain_flips
from .reversion import Reversion, rank_changes, revert

__all__ = [
    "FlipCauses",
    "Reversion",
    "VersionComparison",
    "compare",
    "explain_flips",
    "rank_changes",
    "revert",
]
