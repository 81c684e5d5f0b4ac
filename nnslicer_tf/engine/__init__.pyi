from .engines import Engine, Job
from .store import Store

__all__ = ["Engine", "Job", "Store"]
