from .engines import (
    AdaptiveEngine,
    Engine,
    InProcessEngine,
    Job,
    ThreadEngine,
    in_order,
    make_engine,
)
from .ray_engine import RayEngine
from .store import Store

__all__ = [
    "AdaptiveEngine",
    "Engine",
    "InProcessEngine",
    "Job",
    "RayEngine",
    "Store",
    "ThreadEngine",
    "in_order",
    "make_engine",
]
