"""DFlare: inputs on which a compressed model deviates from its original.

    found = find_deviations(model, "model.tflite", images, preprocess=lambda x: x / 255)
    found.summary(); found.images; found[0].deviation.trace

`find_deviation` and `find_deviations` search the inputs of a `Domain` with `DFlare` or
`DiffChaser`. `compressors` compresses models, `Repair` corrects deviations, `verify` replays them.
To add a mutation operator, subclass `MutationOperator` and add it to a `Domain`'s operators.
"""

from nnslicer_tf.dflare.agreement import Agreement, agreement
from nnslicer_tf.dflare.audio import AUDIO_OPERATORS, AudioDomain
from nnslicer_tf.dflare.bounded import BoundedDomain
from nnslicer_tf.dflare.classifiers import Classifier, as_classifier
from nnslicer_tf.dflare.compressors import (
    distill,
    mutate_weights,
    prune_magnitude,
    quantize_16x8,
    quantize_ai_edge,
    quantize_dynamic,
    quantize_integer,
    with_softmax,
)
from nnslicer_tf.dflare.default_domain import default_domain
from nnslicer_tf.dflare.deviations import DISTANCES, Deviation, DeviationSet, Outcome
from nnslicer_tf.dflare.diffchaser import DiffChaser, k_uncertainty
from nnslicer_tf.dflare.domain import Answers, Domain, Mutation, MutationOperator, replay
from nnslicer_tf.dflare.find import find_deviation, find_deviations
from nnslicer_tf.dflare.fitness import (
    AnyChangeFitness,
    DistanceFitness,
    Fitness,
    GrowthFitness,
    NoveltyFitness,
)
from nnslicer_tf.dflare.images import IMAGE_OPERATORS, PROGRAM_OPERATORS, ImageDomain
from nnslicer_tf.dflare.minimisation import minimise
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.dflare.regression import export_suite
from nnslicer_tf.dflare.repair import Repair, RepairedClassifier, cross_validate, repair_data
from nnslicer_tf.dflare.search import DFlare, Found, Search
from nnslicer_tf.dflare.selection import (
    MetropolisHastings,
    OperatorSelection,
    RankOnly,
    Uniform,
)
from nnslicer_tf.dflare.tables import SignalDomain, TableDomain
from nnslicer_tf.dflare.text import TextDomain, similar_words
from nnslicer_tf.dflare.verify import verify

__all__ = [
    "AUDIO_OPERATORS",
    "DISTANCES",
    "IMAGE_OPERATORS",
    "PROGRAM_OPERATORS",
    "Agreement",
    "Answers",
    "AnyChangeFitness",
    "AudioDomain",
    "BoundedDomain",
    "Classifier",
    "DFlare",
    "Deviation",
    "DeviationSet",
    "DiffChaser",
    "DistanceFitness",
    "Domain",
    "Fitness",
    "Found",
    "GrowthFitness",
    "ImageDomain",
    "MetropolisHastings",
    "ModelPair",
    "Mutation",
    "MutationOperator",
    "NoveltyFitness",
    "OperatorSelection",
    "Outcome",
    "RankOnly",
    "Repair",
    "RepairedClassifier",
    "Search",
    "SignalDomain",
    "TableDomain",
    "TextDomain",
    "Uniform",
    "agreement",
    "as_classifier",
    "cross_validate",
    "default_domain",
    "distill",
    "export_suite",
    "find_deviation",
    "find_deviations",
    "k_uncertainty",
    "minimise",
    "mutate_weights",
    "prune_magnitude",
    "quantize_16x8",
    "quantize_ai_edge",
    "quantize_dynamic",
    "quantize_integer",
    "repair_data",
    "replay",
    "similar_words",
    "verify",
    "with_softmax",
]
