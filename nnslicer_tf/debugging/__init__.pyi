from .comparison import LayerComparison, compare_layers
from .counterparts import counterpart_of, weights_twin
from .localisation import METHODS, Suspicion, suspicious
from .mending import mend, suspicious_synapses
from .places import Counterpart, Place
from .recipe import Recipe, leaving, recipe
from .repair import ProvableRepair, repair
from .runs import Runs
from .static import static_slice

__all__ = [
    "METHODS",
    "Counterpart",
    "LayerComparison",
    "Place",
    "ProvableRepair",
    "Recipe",
    "Runs",
    "Suspicion",
    "compare_layers",
    "counterpart_of",
    "leaving",
    "mend",
    "recipe",
    "repair",
    "static_slice",
    "suspicious",
    "suspicious_synapses",
    "weights_twin",
]
