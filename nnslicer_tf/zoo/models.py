"""The zoo's models and their builders; every model takes images in [0, 1], or word indices.

A builder takes the model's name, the shape of one input and the number of classes, and returns a
functional model that ends in logits. `MODELS` is the table of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf._checks import check_name
from nnslicer_tf.datasets.texts import LENGTH

VOCABULARY = 14_000
"""Words of `datasets.texts.vocabulary("sst2")`, with padding and the unknown word."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo."""

    # Called with name, shape of one input, number of classes, and the options.
    builder: Callable[..., keras.Model]
    dataset: str  # the data set on which the papers use it
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the builder


def convolution(x: Any, width: int, kernel: int, name: str, stride: int = 1) -> Any:
    """Apply a convolution without bias, whose layer is called `name_conv`."""
    return layers.Conv2D(
        width,
        kernel,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)


def normalisation(x: Any, name: str) -> Any:
    """Apply a batch normalisation, which is called `name_norm`."""
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)


def relu(x: Any, name: str) -> Any:
    """Apply a ReLU, which is called `name_relu`."""
    return layers.ReLU(name=f"{name}_relu")(x)


def ending_in_logits(inputs: Any, x: Any, name: str, classes: int) -> keras.Model:
    """Return the model with a dense layer of logits at the end."""
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x), name=name)


def digits_cnn(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build two 3×3 convolutions (16, 32), a max pooling and a dense layer."""
    inputs = keras.Input(shape, name="input")
    x = layers.Conv2D(16, 3, padding="same", name="conv1")(inputs)
    x = layers.ReLU(name="relu1")(x)
    x = layers.MaxPooling2D(name="pool1")(x)
    x = layers.Conv2D(32, 3, name="conv2")(x)
    x = layers.ReLU(name="relu2")(x)
    return ending_in_logits(inputs, layers.Flatten(name="flatten")(x), name, classes)


def mlp(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build two hidden layers of 512 and 256 neurons (NeuSemSlice, section 5.1)."""
    inputs = keras.Input(shape, name="input")
    x = layers.Flatten(name="flatten")(inputs)
    for i, width in enumerate((512, 256), start=1):
        x = layers.Dense(width, name=f"dense{i}")(x)
        x = layers.ReLU(name=f"relu{i}")(x)
    return ending_in_logits(inputs, x, name, classes)


def lenet(
    name: str,
    shape: Shape,
    classes: int,
    filters: Sequence[int],
    paddings: Sequence[str],
    hidden: Sequence[int] = (),
) -> keras.Model:
    """Build 5×5 convolutions with max pooling, and hidden dense layers.

    LeCun et al., "Gradient-based learning applied to document recognition", Proceedings of the
    IEEE, 1998. LeNet-1 and LeNet-4 are those of DeepXplore; `lenet` has the 42,784 parameters of
    NNSlicer's Table 3, which gives no widths; `simplenet` is Distiller's, perhaps DFlare's "CNN".
    """
    x = inputs = keras.Input(shape, name="input")
    for i, (width, padding) in enumerate(zip(filters, paddings, strict=True), start=1):
        x = layers.Conv2D(width, 5, padding=padding, name=f"conv{i}")(x)
        x = relu(x, f"conv{i}")
        x = layers.MaxPooling2D(name=f"pool{i}")(x)
    x = layers.Flatten(name="flatten")(x)
    for i, width in enumerate(hidden, start=1):
        x = relu(layers.Dense(width, name=f"dense{i}")(x), f"dense{i}")
    return ending_in_logits(inputs, x, name, classes)


def lstm_rows(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build an LSTM of 64 units that reads an image from its first row to its last.

    Le, Jaitly and Hinton, "A simple way to initialize recurrent networks of rectified linear
    units", 2015, read MNIST pixel by pixel; rows make sequences of 28 steps instead of 784.
    """
    height, width, channels = shape
    inputs = keras.Input(shape, name="input")
    rows = layers.Reshape((height, width * channels), name="rows")(inputs)
    return ending_in_logits(inputs, layers.LSTM(64, name="lstm")(rows), name, classes)


def resnet(
    name: str, shape: Shape, classes: int, blocks: int, widths: Sequence[int], residual: bool = True
) -> keras.Model:
    """Build stages of blocks of two normalised 3×3 convolutions (He et al., CVPR 2016, 3.3, 4.2).

    Later stages begin by halving the resolution; a block that changes the shape has a 1×1
    convolution as its shortcut. Widths: nearest to 300 K parameters (NNSlicer, Table 3).
    """
    inputs = keras.Input(shape, name="input")
    x = relu(normalisation(convolution(inputs, widths[0], 3, "stem"), "stem"), "stem")
    for stage, width in enumerate(widths, start=1):
        for i in range(1, blocks + 1):
            block, stride = f"stage{stage}_block{i}", 2 if stage > 1 and i == 1 else 1
            y = normalisation(convolution(x, width, 3, f"{block}_1", stride), f"{block}_1")
            y = convolution(relu(y, f"{block}_1"), width, 3, f"{block}_2")
            y = normalisation(y, f"{block}_2")
            if residual:
                if x.shape[-1] != width or stride != 1:
                    x = convolution(x, width, 1, f"{block}_shortcut", stride)
                    x = normalisation(x, f"{block}_shortcut")
                y = layers.Add(name=f"{block}_add")([x, y])
            x = relu(y, block)
    return ending_in_logits(inputs, layers.GlobalAveragePooling2D(name="average")(x), name, classes)


@keras.saving.register_keras_serializable("nnslicer_tf")
class AddPositions(layers.Layer):
    """Adds a trained vector to each position of a sequence `(batch, positions, channels)`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape: tuple) -> None:
        """Create the vectors `(positions, channels)`."""
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.vectors = self.add_weight(input_shape[1:], initializer=initializer, name="vectors")
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
    return layers.Add(name=f"{name}_add2")([x, layers.Dropout(dropout, name=f"{name}_dropout2")(y)])


def text_transformer(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build an encoder of two blocks, four heads and 64 dimensions; padding is masked.

    Normalisation comes before attention and before the MLP (Xiong et al., "On layer normalization
    in the transformer architecture", ICML 2020); the mean over words is classified.
    """
    inputs = keras.Input(shape, dtype="int32", name="words")
    x = layers.Embedding(VOCABULARY, 64, mask_zero=True, name="embedding")(inputs)
    x = AddPositions(name="positions")(x)
    x = layers.Dropout(0.3, name="embedding_dropout")(x)
    for block in (1, 2):
        x = encoder_block(x, 64, heads=4, width=128, dropout=0.3, name=f"block{block}")
    x = layers.LayerNormalization(name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="average")(x)
    return ending_in_logits(inputs, layers.Dropout(0.3, name="dropout")(x), name, classes)


def _lenet(filters: Sequence[int], paddings: Sequence[str], hidden: Sequence[int] = ()) -> Entry:
    return Entry(lenet, "mnist", {"filters": filters, "paddings": paddings, "hidden": hidden})


def _resnet(blocks: int, widths: Sequence[int], **options: bool) -> Entry:
    return Entry(resnet, "cifar10", {"blocks": blocks, "widths": widths, **options})


MODELS: dict[str, Entry] = {
    "digits_cnn": Entry(digits_cnn, "digits"),
    "mlp": Entry(mlp, "mnist"),
    "lenet": _lenet((6, 27), ("valid", "valid"), (87,)),
    "lenet1": _lenet((4, 12), ("same", "same")),
    "lenet4": _lenet((6, 16), ("same", "same"), (84,)),
    "lenet5": _lenet((6, 16), ("same", "valid"), (120, 84)),
    "simplenet": _lenet((20, 50), ("valid", "valid"), (500,)),
    "lstm_rows": Entry(lstm_rows, "mnist"),
    "resnet10": _resnet(1, (16, 32, 64, 128)),
    "resnet18": _resnet(2, (64, 128, 256, 512)),
    "resnet20": _resnet(3, (16, 32, 64)),
    "plainnet20": _resnet(3, (16, 32, 64), residual=False),
    "text_transformer": Entry(text_transformer, "sst2"),
}
"""Name → model."""

SHAPES: dict[str, tuple[Shape, int]] = {
    "digits": ((8, 8, 1), 10),
    "mnist": ((28, 28, 1), 10),
    "fashion_mnist": ((28, 28, 1), 10),
    "cifar10": ((32, 32, 3), 10),
    "sst2": ((LENGTH,), 2),
}
"""Data set → shape of one input, and number of classes."""


def entry(name: str) -> Entry:
    """Return a model's entry in `MODELS`; for an unknown name, suggest similar ones."""
    check_name("model", name, MODELS)
    return MODELS[name]
