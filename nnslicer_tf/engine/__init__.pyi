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
from .rows import RowStore
from .store import Store

__all__ = [
    "AdaptiveEngine",
    "Engine",
    "InProcessEngine",
    "Job",
    "RayEngine",
    "RowStore",
    "Store",
    "ThreadEngine",
    "in_order",
    "make_engine",
]
