"""DeepXplore: inputs on which models disagree, and coverage of models by inputs.

    found = generate([model1, model2, model3], images, constraint="light")
    found.inputs, found.predictions, found.seed_index
    cov = NeuronCoverage(im, threshold=0.25)
    cov.update(images); cov.total()

`generate` searches; a `Constraint` defines how inputs may change. To add a coverage criterion,
subclass `Coverage`. `retrain` trains on the inputs found.
"""

from nnslicer_tf.deepxplore.constraints import (
    CONSTRAINTS,
    Blackout,
    Constraint,
    Light,
    Occlusion,
    Projection,
)
from nnslicer_tf.deepxplore.coverage import Coverage, NeuronCoverage
from nnslicer_tf.deepxplore.deepgauge import (
    BoundaryCoverage,
    KMultisectionCoverage,
    NeuronRanges,
    StrongActivationCoverage,
    TopKCoverage,
)
from nnslicer_tf.deepxplore.differences import Differences
from nnslicer_tf.deepxplore.generate import generate
from nnslicer_tf.deepxplore.neurons import Neurons
from nnslicer_tf.deepxplore.retrain import retrain

__all__ = [
    "CONSTRAINTS",
    "Blackout",
    "BoundaryCoverage",
    "Constraint",
    "Coverage",
    "Differences",
    "KMultisectionCoverage",
    "Light",
    "NeuronCoverage",
    "NeuronRanges",
    "Neurons",
    "Occlusion",
    "Projection",
    "StrongActivationCoverage",
    "TopKCoverage",
    "generate",
    "retrain",
]
