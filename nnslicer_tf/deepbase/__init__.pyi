from . import hypotheses, measures
from .cache import BehaviourCache
from .findings import best_units, keep_masks, unlearned
from .hypotheses import brightness, classes, edge_direction, hue, per_record
from .inspection import inspect
from .measures import (
    MEASURES,
    AdditiveMeasure,
    Block,
    Correlation,
    DifferenceOfMeans,
    LinearProbe,
    LogisticProbe,
    Measure,
    MutualInformation,
    Scores,
)
from .units import Units

__all__ = [
    "MEASURES",
    "AdditiveMeasure",
    "BehaviourCache",
    "Block",
    "Correlation",
    "DifferenceOfMeans",
    "LinearProbe",
    "LogisticProbe",
    "Measure",
    "MutualInformation",
    "Scores",
    "Units",
    "best_units",
    "brightness",
    "classes",
    "edge_direction",
    "hue",
    "hypotheses",
    "inspect",
    "keep_masks",
    "measures",
    "per_record",
    "unlearned",
]
