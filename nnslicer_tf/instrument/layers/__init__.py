"""The operations of each Keras layer: the only package that depends on Keras layer classes."""

from nnslicer_tf.instrument.layers import (
    activations,
    attention,
    embeddings,
    masks,
    merges,
    normalisation,
    pooling,
    probing,
    products,
    projections,
    recurrence,
    resizing,
    routing,
    time_distributed,
    weighted_sums,
)
from nnslicer_tf.instrument.layers.registry import register_layer

for _family in (
    *(weighted_sums, pooling, activations, normalisation, merges, routing, resizing, masks),
    *(embeddings, probing, products, projections, attention, recurrence, time_distributed),
):
    for _layer_class, _operations in _family.LAYERS.items():
        register_layer(_layer_class, _operations)
