"""Reports: plots of the analyses' results, and `nnslicer_tf.explore`'s interactive view.

Plots take `ax=None` and return the axes, or return a figure if they need several panels.
"""

from nnslicer_tf import _faces

# Lazy: pages of tables need no Matplotlib. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
