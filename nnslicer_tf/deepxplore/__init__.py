"""DeepXplore: inputs on which models disagree, and coverage of models by inputs.

    found = generate([model1, model2, model3], images, constraint="light")
    found.inputs, found.predictions, found.seed_index
    cov = NeuronCoverage(im, threshold=0.25)
    cov.update(images); cov.total()

Subclass `Constraint` to define how inputs may change, `Coverage` for another coverage criterion.
"""

from nnslicer_tf.deepxplore.constraints import Blackout, Constraint, Occlusion
from nnslicer_tf.deepxplore.coverage import Coverage, NeuronCoverage, TopKCoverage
from nnslicer_tf.deepxplore.deepgauge import BoundaryCoverage, KMultisectionCoverage, NeuronRanges
from nnslicer_tf.deepxplore.differences import Differences, retrain
from nnslicer_tf.deepxplore.generate import generate

__all__ = [
    "Blackout",
    "BoundaryCoverage",
    "Constraint",
    "Coverage",
    "Differences",
    "KMultisectionCoverage",
    "NeuronCoverage",
    "NeuronRanges",
    "Occlusion",
    "TopKCoverage",
    "generate",
    "retrain",
]
