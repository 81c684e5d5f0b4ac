"""Dynamic slicing of neural networks: profile, forward and backward analysis (NNSlicer)."""

import lazy_loader

# Lazy: a worker imports only the walk, without Keras. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
