"""The zoo's models and their builders; every model takes images in [0, 1], or word indices.

A builder takes the model's name, the shape of one input and the number of classes, and returns a
functional model that ends in logits. `MODELS` is the table of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import layers

from nnslicer_tf._checks import check_name
from nnslicer_tf.datasets.texts import LENGTH
from nnslicer_tf.zoo.transformer import AddPositions, encoder_block

VOCABULARY = 14_000
"""Words of `datasets.texts.vocabulary("sst2")`, with padding and the unknown word."""

MIN_MOBILENET_SIDE = 96
"""Pixels: MobileNetV3 halves an image five times, so 32 would leave a single one."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo."""

    # Called with name, shape of one input, number of classes, and the options.
    builder: Callable[..., keras.Model]
    dataset: str  # the data set on which the papers use it
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the builder


def _conv(x: Any, width: int, kernel: int, name: str, stride: int = 1) -> Any:
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


def _norm(x: Any, name: str) -> Any:
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)


def _relu(x: Any, name: str) -> Any:
    return layers.ReLU(name=f"{name}_relu")(x)


def _logits(inputs: Any, x: Any, name: str, classes: int) -> keras.Model:
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x), name=name)


def digits_cnn(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build two 3×3 convolutions (16, 32), a max pooling and a dense layer."""
    inputs = keras.Input(shape, name="input")
    x = layers.Conv2D(16, 3, padding="same", name="conv1")(inputs)
    x = layers.ReLU(name="relu1")(x)
    x = layers.MaxPooling2D(name="pool1")(x)
    x = layers.Conv2D(32, 3, name="conv2")(x)
    x = layers.ReLU(name="relu2")(x)
    return _logits(inputs, layers.Flatten(name="flatten")(x), name, classes)


def mlp(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build two hidden layers of 512 and 256 neurons (NeuSemSlice, section 5.1)."""
    inputs = keras.Input(shape, name="input")
    x = layers.Flatten(name="flatten")(inputs)
    for i, width in enumerate((512, 256), start=1):
        x = layers.Dense(width, name=f"dense{i}")(x)
        x = layers.ReLU(name=f"relu{i}")(x)
    return _logits(inputs, x, name, classes)


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
    NNSlicer's Table 3, which gives no widths; `simplenet` is Distiller's example for MNIST,
    presumably DFlare's "CNN".
    """
    x = inputs = keras.Input(shape, name="input")
    for i, (width, padding) in enumerate(zip(filters, paddings, strict=True), start=1):
        x = layers.Conv2D(width, 5, padding=padding, name=f"conv{i}")(x)
        x = _relu(x, f"conv{i}")
        x = layers.MaxPooling2D(name=f"pool{i}")(x)
    x = layers.Flatten(name="flatten")(x)
    for i, width in enumerate(hidden, start=1):
        x = _relu(layers.Dense(width, name=f"dense{i}")(x), f"dense{i}")
    return _logits(inputs, x, name, classes)


def lstm_rows(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build an LSTM of 64 units that reads an image from its first row to its last.

    Le, Jaitly and Hinton, "A simple way to initialize recurrent networks of rectified linear
    units", 2015, read MNIST pixel by pixel; rows make sequences of 28 steps instead of 784.
    """
    height, width, channels = shape
    inputs = keras.Input(shape, name="input")
    rows = layers.Reshape((height, width * channels), name="rows")(inputs)
    return _logits(inputs, layers.LSTM(64, name="lstm")(rows), name, classes)


def resnet(
    name: str, shape: Shape, classes: int, blocks: int, widths: Sequence[int], residual: bool = True
) -> keras.Model:
    """Build stages of blocks of two normalised 3×3 convolutions (He et al., CVPR 2016, 3.3, 4.2).

    Later stages begin by halving the resolution; a block that changes the shape has a 1×1
    convolution as its shortcut. The widths come closest to the 300 K parameters of ResNet10 in
    NNSlicer's Table 3.
    """
    inputs = keras.Input(shape, name="input")
    x = _relu(_norm(_conv(inputs, widths[0], 3, "stem"), "stem"), "stem")
    for stage, width in enumerate(widths, start=1):
        for i in range(1, blocks + 1):
            block, stride = f"stage{stage}_block{i}", 2 if stage > 1 and i == 1 else 1
            y = _norm(_conv(x, width, 3, f"{block}_1", stride), f"{block}_1")
            y = _conv(_relu(y, f"{block}_1"), width, 3, f"{block}_2")
            y = _norm(y, f"{block}_2")
            if residual:
                if x.shape[-1] != width or stride != 1:
                    x = _conv(x, width, 1, f"{block}_shortcut", stride)
                    x = _norm(x, f"{block}_shortcut")
                y = layers.Add(name=f"{block}_add")([x, y])
            x = _relu(y, block)
    x = layers.GlobalAveragePooling2D(name="average")(x)
    return _logits(inputs, x, name, classes)


def resnet10_preactivation(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build the ResNet10 of the NNSlicer paper's program.

    Normalisation and ReLU precede each convolution (He et al., "Identity mappings in deep residual
    networks", ECCV 2016). Every block has a 1×1 shortcut without normalisation; the stem has none.
    """
    inputs = keras.Input(shape, name="input")
    x = _conv(inputs, 16, 3, "stem")
    for stage, width in enumerate((16, 32, 64, 128), start=1):
        block, stride = f"stage{stage}_block1", 1 if stage == 1 else 2
        x = _relu(_norm(x, f"{block}_1"), f"{block}_1")
        shortcut = _conv(x, width, 1, f"{block}_shortcut", stride)
        y = _conv(x, width, 3, f"{block}_1", stride)
        y = _relu(_norm(y, f"{block}_2"), f"{block}_2")
        y = _conv(y, width, 3, f"{block}_2")
        x = layers.Add(name=f"{block}_add")([shortcut, y])
    x = _relu(_norm(x, "final"), "final")
    x = layers.GlobalAveragePooling2D(name="average")(x)
    return _logits(inputs, x, name, classes)


def alexnet(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build five convolutions and one hidden dense layer of 4,096.

    Based on Krizhevsky et al., NeurIPS 2012. As in the semantic slicing paper's AlexNet (section
    5.2), the hidden dense layer holds 87.97 % of the parameters.
    """
    x = inputs = keras.Input(shape, name="input")
    for i, (width, kernel) in enumerate(((64, 5), (192, 3), (384, 3), (256, 3), (256, 3)), start=1):
        convolution = layers.Conv2D(
            width, kernel, padding="same", kernel_initializer="he_normal", name=f"conv{i}"
        )
        x = _relu(convolution(x), f"conv{i}")
        if i in (1, 2, 5):
            x = layers.MaxPooling2D(name=f"pool{i}")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(4096, kernel_initializer="he_normal", name="dense1")(x)
    x = layers.Dropout(0.5, name="dropout")(_relu(x, "dense1"))
    return _logits(inputs, x, name, classes)


def vgg16(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build 13 convolutions with batch normalisation and dense layers 512, 512.

    Based on Simonyan and Zisserman, ICLR 2015 (no normalisation, dense layers of 4,096, 224×224
    images). The pixels after the last pooling are averaged, so that the weights fit any size.
    """
    x = inputs = keras.Input(shape, name="input")
    stages = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    for stage, (width, convolutions) in enumerate(stages, start=1):
        for i in range(1, convolutions + 1):
            layer = f"block{stage}_{i}"
            x = _relu(_norm(_conv(x, width, 3, layer), layer), layer)
        x = layers.MaxPooling2D(padding="same", name=f"block{stage}_pool")(x)
    x = layers.GlobalAveragePooling2D(name="average")(x)
    for i in (1, 2):
        x = layers.Dense(512, kernel_initializer="he_normal", name=f"dense{i}")(x)
        x = layers.Dropout(0.5, name=f"dropout{i}")(_relu(x, f"dense{i}"))
    return _logits(inputs, x, name, classes)


def application(name: str, shape: Shape, classes: int, of: str) -> keras.Model:
    """Build a model of `keras.applications` with fresh weights; images are at least 32×32."""
    return getattr(keras.applications, of)(
        weights=None, input_shape=shape, classes=classes, classifier_activation=None
    )


def mobilenet(name: str, shape: Shape, classes: int, of: str) -> keras.Model:
    """Build a MobileNetV3 whose first layer enlarges images below 96×96 by repeating pixels."""
    inputs = keras.Input(shape, name="image")
    times = -(-MIN_MOBILENET_SIDE // min(shape[:2]))
    large = layers.UpSampling2D(times, name="enlarged")(inputs) if times > 1 else inputs
    network = getattr(keras.applications, of)(
        weights=None,
        input_shape=large.shape[1:],
        classes=classes,
        classifier_activation=None,
        input_tensor=large,
        include_preprocessing=False,
    )
    for layer in network.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.99  # Keras has 0.999, for ImageNet's long epochs
    return keras.Model(inputs, network.output, name=network.name)


def vit(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build a vision transformer, four blocks of 96 channels on 8×8 positions.

    Based on Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021, adapted to small data:
    three small convolutions create the positions (Xiao et al., "Early convolutions help
    transformers see better", NeurIPS 2021), and the mean of the positions is classified (Zhai et
    al., "Scaling vision transformers", CVPR 2022).
    """
    inputs = keras.Input(shape, name="input")
    x = layers.Conv2D(24, 3, padding="same", activation="relu", name="stem1")(inputs)
    x = layers.Conv2D(48, 3, 2, padding="same", activation="relu", name="stem2")(x)
    x = layers.Conv2D(96, 3, 2, padding="same", name="patches")(x)
    x = layers.Reshape((-1, 96), name="sequence")(x)
    x = AddPositions(name="positions")(x)
    for block in range(1, 5):
        x = encoder_block(x, 96, heads=4, width=192, dropout=0.0, name=f"block{block}")
    x = layers.LayerNormalization(name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="average")(x)
    return _logits(inputs, x, name, classes)


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
    x = layers.Dropout(0.3, name="dropout")(x)
    return _logits(inputs, x, name, classes)


def text_lstm(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build a bidirectional LSTM of 2 × 64 units on embeddings of 64; padding is masked."""
    inputs = keras.Input(shape, dtype="int32", name="words")
    x = layers.Embedding(VOCABULARY, 64, mask_zero=True, name="embedding")(inputs)
    x = layers.Dropout(0.4, name="embedding_dropout")(x)
    x = layers.Bidirectional(layers.LSTM(64, name="lstm"), name="bidirectional")(x)
    x = layers.Dropout(0.4, name="dropout")(x)
    return _logits(inputs, x, name, classes)


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
    "resnet10_preactivation": Entry(resnet10_preactivation, "cifar10"),
    "resnet18": _resnet(2, (64, 128, 256, 512)),
    "resnet20": _resnet(3, (16, 32, 64)),
    "plainnet20": _resnet(3, (16, 32, 64), residual=False),
    "alexnet": Entry(alexnet, "cifar10"),
    "vgg16": Entry(vgg16, "cifar10"),
    "resnet101": Entry(application, "cifar10", {"of": "ResNet101"}),
    "vgg19": Entry(application, "imagenet", {"of": "VGG19"}),
    "mobilenet_v3_small": Entry(mobilenet, "cifar10", {"of": "MobileNetV3Small"}),
    "mobilenet_v3_large": Entry(mobilenet, "cifar10", {"of": "MobileNetV3Large"}),
    "vit": Entry(vit, "cifar10"),
    "text_transformer": Entry(text_transformer, "sst2"),
    "text_lstm": Entry(text_lstm, "sst2"),
}
"""Name → model."""

SHAPES: dict[str, tuple[Shape, int]] = {
    "digits": ((8, 8, 1), 10),
    "mnist": ((28, 28, 1), 10),
    "fashion_mnist": ((28, 28, 1), 10),
    "cifar10": ((32, 32, 3), 10),
    "imagenet": ((224, 224, 3), 1000),
    "sst2": ((LENGTH,), 2),
}
"""Data set → shape of one input, and number of classes."""


def entry(name: str) -> Entry:
    """Return a model's entry in `MODELS`; for an unknown name, suggest similar ones."""
    check_name("model", name, MODELS)
    return MODELS[name]
