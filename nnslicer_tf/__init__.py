"""Program analysis of neural networks on one instrumented view of a Keras model."""

from nnslicer_tf import _faces

__version__ = "0.2.0.dev0"

# Lazy, so that importing is fast and workers do not import Keras. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
