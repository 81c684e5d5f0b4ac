from . import acas
from .gradients import Attributor, integrated_gradients
from .partition import LinearPartition
from .planar_partition import PlanarPartition
from .plane import PlaneWalker, exact_plane
from .rules import register_transformer
from .walk import LineWalker, exact_line

__all__ = [
    "Attributor",
    "LineWalker",
    "LinearPartition",
    "PlanarPartition",
    "PlaneWalker",
    "acas",
    "exact_line",
    "exact_plane",
    "integrated_gradients",
    "register_transformer",
]
