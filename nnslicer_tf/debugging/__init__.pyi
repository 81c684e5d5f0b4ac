from .localisation import METHODS, Suspicion, suspicious
from .mending import mend, suspicious_synapses
from .repair import Repair, repair
from .runs import Runs
from .static import static_slice

__all__ = [
    "METHODS",
    "Repair",
    "Runs",
    "Suspicion",
    "mend",
    "repair",
    "static_slice",
    "suspicious",
    "suspicious_synapses",
]
