from .hypotheses import brightness, classes, edge_direction, per_record
from .inspection import best_units, inspect
from .measures import MEASURES
from .measures.base import AdditiveMeasure, Measure
from .units import Units

__all__ = [
    "MEASURES",
    "AdditiveMeasure",
    "Measure",
    "Units",
    "best_units",
    "brightness",
    "classes",
    "edge_direction",
    "inspect",
    "per_record",
]
