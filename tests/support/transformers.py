"""Small transformers: a classifier of sentences, a vision transformer, a decoder."""

import keras
from keras import layers, ops

from nnslicer_tf.instrument import Affine
from nnslicer_tf.zoo.models import AddPositions, encoder_block

LENGTH, WORDS, CLASSES = 8, 20, 3


def classifier():
    """An encoder of words with padding, one block."""
    inputs = keras.Input((LENGTH,), dtype="int32", name="words")
    x = layers.Embedding(WORDS, 8, mask_zero=True, name="embedding")(inputs)
    x = AddPositions(name="positions")(x)
    x = encoder_block(x, 8, heads=2, width=12, dropout=0.1, name="block")
    x = layers.GlobalAveragePooling1D(name="average")(x)
    return keras.Model(inputs, layers.Dense(CLASSES, name="logits")(x))


class ClassToken(layers.Layer):
    """Puts a trained vector before a sequence `(batch, positions, channels)`."""

    def build(self, input_shape):
        self.token = self.add_weight(shape=(1, 1, input_shape[-1]), name="token")

    def call(self, x):
        token = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1)


def vision():
    """Patches with a class token, one block with a gated MLP (SwiGLU) and RMS normalisation."""
    inputs = keras.Input((8, 8, 2), name="image")
    x = layers.Conv2D(8, 4, 4, name="patches")(inputs)
    x = layers.Reshape((-1, 8), name="sequence")(x)
    x = ClassToken(name="token")(x)
    x = AddPositions(name="positions")(x)
    y = layers.RMSNormalization(name="norm1")(x)
    y = layers.GroupQueryAttention(4, 2, 1, name="attention")(y, y)
    x = x + y
    y = layers.RMSNormalization(name="norm2")(x)
    gate, up = layers.Dense(12, name="gate")(y), layers.Dense(12, name="up")(y)
    x = x + layers.Dense(8, name="down")(ops.silu(gate) * up)
    return keras.Model(inputs, layers.Dense(CLASSES, name="logits")(x[:, 0]))


def decoder():
    """A causal decoder of two blocks whose output shares the table of the embedding."""
    inputs = keras.Input((LENGTH,), dtype="int32", name="tokens")
    table = layers.ReversibleEmbedding(WORDS, 8, name="table")
    x = AddPositions(name="positions")(table(inputs))
    for block in ("first", "second"):
        y = layers.LayerNormalization(name=f"{block}_norm")(x)
        attention = layers.MultiHeadAttention(2, 4, name=f"{block}_attention")
        x = layers.Add(name=f"{block}_add")([x, attention(y, y, use_causal_mask=True)])
    return keras.Model(inputs, table(x[:, -1], reverse=True))


def register_class_token(nns):
    """Register the operations of `ClassToken`: zeros before the sequence, then the vector."""

    def steps(layer, call):
        length = call.output_shape[0]

        def pad(x):
            return ops.pad(x, [[0, 0], [1, 0], [0, 0]])

        def offset():
            return ops.pad(layer.token[0], [[0, length - 1], [0, 0]])

        def read():
            return 1.0, ops.convert_to_numpy(offset()).astype("float64")

        return [
            nns.Step("routing", pad, suffix=":pad"),
            nns.Step("scale", lambda x: x + ops.cast(offset(), x.dtype), Affine(read)),
        ]

    nns.register_layer(ClassToken, steps)
