"""Reports: plots of the analyses' results, and `nnslicer_tf.explore`'s interactive view.

Plots take `ax=None` and return the axes, or return a figure if they need several panels.
"""

import lazy_loader

# Lazy: pages of tables need no Matplotlib. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
