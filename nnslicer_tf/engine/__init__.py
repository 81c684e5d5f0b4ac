"""Engines that run long work, and stores that keep its finished parts."""

import lazy_loader

# Lazy: Ray is imported where it is used. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
