"""DFlare: find inputs on which a compressed model deviates from its original.

    pair = ModelPair(model, "model.tflite", preprocess=lambda x: x / 255)
    found = find_deviations(pair, images)
    found.summary(); found.images; found[0].deviation.trace

`DFlare` and `DiffChaser` are the searches; a `Domain` is a kind of input.
"""

import lazy_loader

# Lazy: a domain needs neither Keras models nor LiteRT. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
