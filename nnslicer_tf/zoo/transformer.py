"""Parts of transformers: learned positions and the encoder block."""

from typing import Any

import keras
from keras import layers, ops


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


def encoder_block(x: Any, size: int, *, heads: int, width: int, dropout: float, name: str) -> Any:
    """Apply pre-normalised self-attention and MLP, with residuals, to `(batch, positions, size)`.

    Each head has `size // heads` channels; `width` is the MLP's hidden size; `name` prefixes the
    layers' names. The mask of `x` is preserved.
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
