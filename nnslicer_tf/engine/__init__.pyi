from .engines import Engine, Job, in_order, make_engine
from .store import Store

__all__ = ["Engine", "Job", "Store", "in_order", "make_engine"]
