"""DeepBase: find out which units follow which hypotheses, in one declarative call.

    frame = inspect(
        model, images,
        {"bright": brightness, "red": lambda x: x[..., 0], **classes(labels, names)},
        ["correlation", "mutual_information"], units="conv*", error=0.05,
    )

Any function or array can be a hypothesis; for own measures subclass `AdditiveMeasure`.
"""

from nnslicer_tf import _faces

# Lazy: workers import only the measures. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
