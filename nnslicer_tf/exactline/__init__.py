"""Exact restrictions of piecewise-linear networks to lines and planes (ExactLine, NeurIPS 2019)."""

import lazy_loader

# Lazy: lines need no planes. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
