from .comparison import compare_layers
from .counterparts import counterpart_of
from .localisation import METHODS, mend, suspicious
from .provable_repair import repair
from .recipes import recipe
from .runs import Runs
from .static import static_slice

__all__ = [
    "METHODS",
    "Runs",
    "compare_layers",
    "counterpart_of",
    "mend",
    "recipe",
    "repair",
    "static_slice",
    "suspicious",
]
