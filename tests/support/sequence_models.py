"""Small models of token sequences with dyadic weights, drawn at random."""

import keras
import numpy as np
from keras import layers

from support.models import dyadic

TOKENS, LENGTH, CLASSES = 7, 4, 3


def attention(rng, kind, causal, query, value, name):
    """Apply attention of a kind; remember on the layer whether it is causal."""
    if kind == "multi_head":
        layer = layers.MultiHeadAttention(int(rng.integers(1, 3)), 4, name=name)
    else:
        layer = layers.GroupQueryAttention(4, 2, 1, name=name)
    layer.causal = causal
    return layer(query, value, use_causal_mask=causal)


def random_sequence_model(rng):
    """A transformer of one or two blocks, with what can vary drawn at random."""
    channels = 4
    inputs = keras.Input((LENGTH,), dtype="int32")
    mask = bool(rng.integers(2))
    h = layers.Embedding(TOKENS, channels, mask_zero=mask, name="tokens")(inputs)
    other = h
    if rng.integers(3) == 0:  # cross attention, to a sequence whose padding counts
        other = layers.Embedding(TOKENS, channels, mask_zero=False, name="others")(inputs)
    for block in range(int(rng.integers(1, 3))):
        # Keras itself warns of a mask that the projections of grouped queries do not hand on.
        kind = "grouped_query" if not mask and rng.integers(2) else "multi_head"
        causal = bool(rng.integers(2))
        a = attention(rng, kind, causal, h, other, f"attention{block}")
        h = layers.Add()([h, a]) if rng.integers(2) else a
        if rng.integers(2):
            h = layers.LayerNormalization()(h)
        h = layers.Dense(channels, activation="relu")(h)
    h = layers.GlobalAveragePooling1D()(h) if mask or rng.integers(2) else layers.Flatten()(h)
    model = keras.Model(inputs, layers.Dense(CLASSES)(h))
    for weight in model.weights:
        weight.assign(dyadic(rng, weight.shape))
    return model


def tokens(rng, samples):
    """Tokens with padding at the end: one, two or four of four positions are there."""
    x = rng.integers(1, TOKENS, (samples, LENGTH))
    lengths = rng.choice([1, 2, LENGTH], samples)
    return np.where(np.arange(LENGTH) < lengths[:, None], x, 0)
