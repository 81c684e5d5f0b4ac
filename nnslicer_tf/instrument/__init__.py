"""Keras model → operations → values: the graph that every analysis works on."""

from nnslicer_tf._lazy import lazy_exports

_MODULES = {
    "nnslicer_tf.instrument.copies": ("copy_model",),
    "nnslicer_tf.instrument.data": (
        *("Samples", "batches", "check_array", "check_batch_size", "count_samples"),
    ),
    "nnslicer_tf.instrument.graph": ("Graph",),
    "nnslicer_tf.instrument.layers": ("register_layer",),
    "nnslicer_tf.instrument.model": ("Activations", "InstrumentedModel"),
    "nnslicer_tf.instrument.operations": (
        *("KINDS", "Affine", "Elementwise", "KernelLayout", "Operation", "Pooling"),
        *("Step", "Synapses"),
    ),
}

__all__ = [name for names in _MODULES.values() for name in names]

# Lazy: a worker needs the backward walk alone, without Keras.
__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
