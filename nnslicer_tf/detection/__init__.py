"""Detect adversarial inputs from slices, and generate such inputs with attacks.

Adding a detector: subclass `Detector`, or `VotingDetector`, which implements more of it (see their
docstrings); everything that fits, evaluates, attacks and saves detectors then accepts it. Adding a
way to score inputs: subclass `Scorer`, and use it in a `Vote`.
"""

import lazy_loader

# Lazy: the attacks need neither scikit-learn nor the slicer. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
