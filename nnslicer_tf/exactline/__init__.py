"""Exact restrictions of piecewise-linear networks to lines and planes (ExactLine, NeurIPS 2019)."""

from nnslicer_tf import _faces

# Lazy: lines need no planes. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
