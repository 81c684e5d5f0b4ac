from .comparison import compare_layers
from .counterparts import counterpart_of
from .evidence import METHODS, SuspicionScores
from .localisation import mend, suspicious
from .recipes import recipe
from .runs import Runs

__all__ = [
    "METHODS",
    "Runs",
    "SuspicionScores",
    "compare_layers",
    "counterpart_of",
    "mend",
    "recipe",
    "suspicious",
]
