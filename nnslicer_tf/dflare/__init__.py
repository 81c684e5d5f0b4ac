"""DFlare: find inputs on which a compressed model deviates from its original.

    pair = ModelPair(model, "model.tflite", preprocess=lambda x: x / 255)
    found = find_deviations(pair, images)
    found.summary(); found.images; found[0].deviation.trace

`DFlare` and `DiffChaser` are the searches; a `Domain` is a kind of input.
"""

from nnslicer_tf.dflare.agreement import agreement
from nnslicer_tf.dflare.classifiers import as_classifier
from nnslicer_tf.dflare.compressors import compress, distill, with_softmax
from nnslicer_tf.dflare.deviations import DeviationSet
from nnslicer_tf.dflare.diffchaser import DiffChaser
from nnslicer_tf.dflare.domain import Domain, MutationOperator
from nnslicer_tf.dflare.find import find_deviations
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.dflare.repair import repair_labels
from nnslicer_tf.dflare.replay import export_suite, minimise, verify
from nnslicer_tf.dflare.search import DFlare, SearchAlgorithm
from nnslicer_tf.dflare.tables import SignalDomain, TableDomain
from nnslicer_tf.dflare.text import TextDomain

__all__ = [
    "DFlare",
    "DeviationSet",
    "DiffChaser",
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
    "distill",
    "export_suite",
    "find_deviations",
    "minimise",
    "repair_labels",
    "verify",
    "with_softmax",
]
