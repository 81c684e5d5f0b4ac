"""Dynamic slicing of neural networks: profile, forward and backward analysis (NNSlicer)."""

from nnslicer_tf._lazy import lazy_exports

_MODULES = {
    "nnslicer_tf.slicing.criterion": ("Criterion",),
    "nnslicer_tf.slicing.profile": ("Profile",),
    "nnslicer_tf.slicing.rules": ("Neurons", "Rule", "register_rule"),
    "nnslicer_tf.slicing.slice": ("Slice",),
    "nnslicer_tf.slicing.slice_set": ("SliceSet",),
    "nnslicer_tf.slicing.slicer": ("Slicer",),
}

__all__ = [name for names in _MODULES.values() for name in names]

# Lazy: a worker imports the walker alone, without Keras.
__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
