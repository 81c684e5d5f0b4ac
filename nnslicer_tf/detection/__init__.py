"""Detect adversarial inputs from slices, and the attacks that make such inputs.

Adding a detector: subclass `Detector`, or `VotingDetector` or `VectorDetector`, which have
more of it (see their docstrings); everything that fits, evaluates and saves detectors then takes
it. Adding a way to score inputs: subclass `Scorer`, and give a preset of `SliceDetector` a
`Vote` with it (see `presets`).
"""

import lazy_loader

# Lazy: the attacks need neither scikit-learn nor the slicer. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
