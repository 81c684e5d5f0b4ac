"""DFlare: find inputs on which a compressed model deviates from its original.

    pair = ModelPair(model, "model.tflite", preprocess=lambda x: x / 255)
    found = find_deviations(pair, images)
    found.summary(); found.images; found[0].deviation.trace

`DFlare` is the search; a `Domain` is a kind of input.
"""

from nnslicer_tf import _faces

# Lazy: a domain needs neither Keras models nor LiteRT. `__init__.pyi` has the names.
__getattr__, __dir__, __all__ = _faces.attach(__name__, __file__)
