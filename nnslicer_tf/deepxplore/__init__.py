"""DeepXplore: inputs on which models disagree, and coverage of models by inputs.

    found = generate([model1, model2, model3], images, constraint="light")
    found.inputs, found.predictions, found.seed_index
    cov = NeuronCoverage(im, threshold=0.25)
    cov.update(images); cov.total()

Subclass `Constraint` to define how inputs may change, `Coverage` for another coverage criterion.
"""

from nnslicer_tf import _faces

# Lazy: coverage needs no search. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
