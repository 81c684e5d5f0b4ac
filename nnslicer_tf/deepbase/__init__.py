"""DeepBase: which units follow which hypotheses, declared in one call.

    frame = inspect(
        model, images,
        {"bright": brightness, "red": hue(0), **classes(labels, names)},
        ["correlation", "mutual_information"], units="conv*", error=0.05,
    )

`hypotheses` has functions for images; any function or array is a hypothesis. To add a measure,
subclass `AdditiveMeasure`, see `measures.base`. `findings` draws conclusions from the result:
units to prune, and hypotheses that no unit follows.
"""

import lazy_loader

# Lazy: workers import the measures alone. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
