from .agreements import agreement
from .classifiers import as_classifier
from .compressors import compress, with_softmax
from .deviations import DeviationSet
from .domain import Domain, MutationOperator
from .find import find_deviations
from .images import ImageDomain
from .model_pair import ModelPair
from .repair import repair_labels
from .replay import export_suite, minimise, verify
from .search import DFlare, SearchAlgorithm
from .tables import SignalDomain, TableDomain
from .text import TextDomain

__all__ = [
    "DFlare",
    "DeviationSet",
    "Domain",
    "ImageDomain",
    "ModelPair",
    "MutationOperator",
    "SearchAlgorithm",
    "SignalDomain",
    "TableDomain",
    "TextDomain",
    "agreement",
    "as_classifier",
    "compress",
    "export_suite",
    "find_deviations",
    "minimise",
    "repair_labels",
    "verify",
    "with_softmax",
]
