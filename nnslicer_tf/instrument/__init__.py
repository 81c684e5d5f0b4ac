"""Keras model → operations → values: the graph that every analysis works on."""

from nnslicer_tf import _faces

# Lazy: a worker needs only the backward walk, without Keras. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
