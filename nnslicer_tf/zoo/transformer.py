"""Transformers: the encoder block, learned positions, and a small vision transformer."""

from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.instrument.layers import adds_table, register_layer

Shape = tuple[int, int, int]


@keras.saving.register_keras_serializable("nnslicer_tf")
class AddPositions(layers.Layer):
    """Adds a trained vector to each position of a sequence `(batch, positions, channels)`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape: tuple) -> None:
        """Create the vectors `(positions, channels)`."""
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.vectors = self.add_weight(
            shape=input_shape[1:], initializer=initializer, name="vectors"
        )
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        """Return the sum."""
        return x + ops.cast(self.vectors, x.dtype)


register_layer(AddPositions, adds_table(lambda layer: layer.vectors))


def encoder_block(x: Any, size: int, *, heads: int, width: int, dropout: float, name: str) -> Any:
    """Apply pre-normalised self-attention and MLP, each with a residual connection.

    Args:
        x: Symbolic tensor `(batch, positions, size)`; its mask is kept.
        size: Channels.
        heads: Heads of the attention; each has `size // heads` channels.
        width: Hidden neurons of the MLP.
        dropout: Dropout rate after attention and MLP.
        name: Prefix of the layers' names.
    """
    y = layers.LayerNormalization(name=f"{name}_norm1")(x)
    attention = layers.MultiHeadAttention(heads, size // heads, name=f"{name}_attention")
    y = layers.Dropout(dropout, name=f"{name}_dropout1")(attention(y, y))
    x = layers.Add(name=f"{name}_add1")([x, y])
    y = layers.LayerNormalization(name=f"{name}_norm2")(x)
    y = layers.Dense(width, activation="gelu", name=f"{name}_mlp1")(y)
    y = layers.Dense(size, name=f"{name}_mlp2")(y)
    y = layers.Dropout(dropout, name=f"{name}_dropout2")(y)
    return layers.Add(name=f"{name}_add2")([x, y])


def vit(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build a vision transformer, four blocks of 96 channels on 8×8 positions: logits.

    Based on Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021, with two changes for
    small data. Three small convolutions create the positions, instead of one on 4×4 patches (Xiao
    et al., "Early convolutions help transformers see better", NeurIPS 2021). The mean of the
    positions is classified, not a class token (Zhai et al., "Scaling vision transformers", CVPR
    2022).
    """
    inputs = keras.Input(input_shape, name="input")
    x = layers.Conv2D(24, 3, padding="same", activation="relu", name="stem1")(inputs)
    x = layers.Conv2D(48, 3, 2, padding="same", activation="relu", name="stem2")(x)
    x = layers.Conv2D(96, 3, 2, padding="same", name="patches")(x)
    x = layers.Reshape((-1, 96), name="sequence")(x)
    x = AddPositions(name="positions")(x)
    for block in range(1, 5):
        x = encoder_block(x, 96, heads=4, width=192, dropout=0.0, name=f"block{block}")
    x = layers.LayerNormalization(name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="average")(x)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x), name="vit")
