"""Keras model → operations → values: the graph that every analysis works on."""

import lazy_loader

# Lazy: a worker needs only the backward walk, without Keras. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
