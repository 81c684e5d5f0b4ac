"""Detect adversarial inputs from slices, and generate such inputs with attacks.

To add a detector, subclass `Detector`, or `VotingDetector`, which implements more of it; fitting,
evaluation and saving then work with it. For a new way of scoring, put a `Scorer` into a `Vote`.
"""

from nnslicer_tf import _faces

# Lazy: the attacks need neither scikit-learn nor the slicer. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
