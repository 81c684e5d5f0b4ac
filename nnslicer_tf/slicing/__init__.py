"""Dynamic slicing of neural networks: profile, forward and backward analysis (NNSlicer)."""

from nnslicer_tf import _faces

# Lazy: a worker imports only the walk, without Keras. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
