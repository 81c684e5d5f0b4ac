"""The operations of each Keras layer: the only package that depends on Keras layer classes."""

from importlib import import_module

from nnslicer_tf.instrument.registry import register_layer

for _family in (
    *("weighted_sums", "pooling", "activations", "normalisation", "merges", "routing"),
    *("masks", "embeddings", "probing", "projections", "attention", "recurrence"),
    *("time_distributed", "functions"),
):
    for _layer_class, _operations in import_module(f"{__name__}.{_family}").LAYERS.items():
        register_layer(_layer_class, _operations)
