"""Sentence classifiers: a transformer and a bidirectional LSTM, small enough for a CPU.

Both take the indices of a sentence's words `(words,)` int32, padded with 0 (see `texts`), and mask
the padding.
"""

import keras
from keras import layers

from nnslicer_tf.datasets.texts import LENGTH
from nnslicer_tf.zoo.transformer import AddPositions, encoder_block

VOCABULARY = 14_000
"""Words of the vocabulary in data/vocabularies/sst2.txt, with padding and the unknown word."""


def text_transformer(input_shape: tuple[int] = (LENGTH,), classes: int = 2) -> keras.Model:
    """Build an encoder of two blocks, four heads and 64 dimensions: logits.

    Normalisation comes before attention and before the MLP (Xiong et al., "On layer normalization
    in the transformer architecture", ICML 2020); the mean over words is classified.
    """
    inputs = keras.Input(input_shape, dtype="int32", name="words")
    x = layers.Embedding(VOCABULARY, 64, mask_zero=True, name="embedding")(inputs)
    x = AddPositions(name="positions")(x)
    x = layers.Dropout(0.3, name="embedding_dropout")(x)
    for block in (1, 2):
        x = encoder_block(x, 64, heads=4, width=128, dropout=0.3, name=f"block{block}")
    x = layers.LayerNormalization(name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="average")(x)
    x = layers.Dropout(0.3, name="dropout")(x)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x), name="text_transformer")


def text_lstm(input_shape: tuple[int] = (LENGTH,), classes: int = 2) -> keras.Model:
    """Build a bidirectional LSTM of 2 × 64 units on embeddings of 64 dimensions: logits."""
    inputs = keras.Input(input_shape, dtype="int32", name="words")
    x = layers.Embedding(VOCABULARY, 64, mask_zero=True, name="embedding")(inputs)
    x = layers.Dropout(0.4, name="embedding_dropout")(x)
    x = layers.Bidirectional(layers.LSTM(64, name="lstm"), name="bidirectional")(x)
    x = layers.Dropout(0.4, name="dropout")(x)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x), name="text_lstm")
