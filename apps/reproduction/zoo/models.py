"""The papers' larger networks, which this module adds to the package's zoo.

Experiments take the zoo from here: `from reproduction.zoo.models import zoo`.
"""

import keras
from keras import layers

from nnslicer_tf import zoo
from nnslicer_tf.zoo.models import (
    SHAPES,
    VOCABULARY,
    AddPositions,
    Entry,
    Shape,
    convolution,
    encoder_block,
    ending_in_logits,
    normalisation,
    relu,
)

MIN_MOBILENET_SIDE = 96
"""Pixels: MobileNetV3 halves an image five times, so 32 would leave a single one."""


def resnet10_preactivation(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build the ResNet10 of the NNSlicer paper's program.

    Normalisation and ReLU precede each convolution (He et al., "Identity mappings in deep residual
    networks", ECCV 2016). Every block has a 1×1 shortcut without normalisation; the stem has none.
    """
    inputs = keras.Input(shape, name="input")
    x = convolution(inputs, 16, 3, "stem")
    for stage, width in enumerate((16, 32, 64, 128), start=1):
        block, stride = f"stage{stage}_block1", 1 if stage == 1 else 2
        x = relu(normalisation(x, f"{block}_1"), f"{block}_1")
        shortcut = convolution(x, width, 1, f"{block}_shortcut", stride)
        y = convolution(x, width, 3, f"{block}_1", stride)
        y = relu(normalisation(y, f"{block}_2"), f"{block}_2")
        y = convolution(y, width, 3, f"{block}_2")
        x = layers.Add(name=f"{block}_add")([shortcut, y])
    x = relu(normalisation(x, "final"), "final")
    x = layers.GlobalAveragePooling2D(name="average")(x)
    return ending_in_logits(inputs, x, name, classes)


def alexnet(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build five convolutions and one hidden dense layer of 4,096.

    Based on Krizhevsky et al., NeurIPS 2012. As in the semantic slicing paper's AlexNet (section
    5.2), the hidden dense layer holds 87.97 % of the parameters.
    """
    x = inputs = keras.Input(shape, name="input")
    for i, (width, kernel) in enumerate(((64, 5), (192, 3), (384, 3), (256, 3), (256, 3)), start=1):
        layer = layers.Conv2D(
            width, kernel, padding="same", kernel_initializer="he_normal", name=f"conv{i}"
        )
        x = relu(layer(x), f"conv{i}")
        if i in (1, 2, 5):
            x = layers.MaxPooling2D(name=f"pool{i}")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(4096, kernel_initializer="he_normal", name="dense1")(x)
    x = layers.Dropout(0.5, name="dropout")(relu(x, "dense1"))
    return ending_in_logits(inputs, x, name, classes)


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
            x = relu(normalisation(convolution(x, width, 3, layer), layer), layer)
        x = layers.MaxPooling2D(padding="same", name=f"block{stage}_pool")(x)
    x = layers.GlobalAveragePooling2D(name="average")(x)
    for i in (1, 2):
        x = layers.Dense(512, kernel_initializer="he_normal", name=f"dense{i}")(x)
        x = layers.Dropout(0.5, name=f"dropout{i}")(relu(x, f"dense{i}"))
    return ending_in_logits(inputs, x, name, classes)


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
    return ending_in_logits(inputs, x, name, classes)


def text_lstm(name: str, shape: Shape, classes: int) -> keras.Model:
    """Build a bidirectional LSTM of 2 × 64 units on embeddings of 64; padding is masked."""
    inputs = keras.Input(shape, dtype="int32", name="words")
    x = layers.Embedding(VOCABULARY, 64, mask_zero=True, name="embedding")(inputs)
    x = layers.Dropout(0.4, name="embedding_dropout")(x)
    x = layers.Bidirectional(layers.LSTM(64, name="lstm"), name="bidirectional")(x)
    x = layers.Dropout(0.4, name="dropout")(x)
    return ending_in_logits(inputs, x, name, classes)


zoo.MODELS.update(
    {
        "resnet10_preactivation": Entry(resnet10_preactivation, "cifar10"),
        "alexnet": Entry(alexnet, "cifar10"),
        "vgg16": Entry(vgg16, "cifar10"),
        "resnet101": Entry(application, "cifar10", {"of": "ResNet101"}),
        "vgg19": Entry(application, "imagenet", {"of": "VGG19"}),
        "mobilenet_v3_small": Entry(mobilenet, "cifar10", {"of": "MobileNetV3Small"}),
        "mobilenet_v3_large": Entry(mobilenet, "cifar10", {"of": "MobileNetV3Large"}),
        "vit": Entry(vit, "cifar10"),
        "text_lstm": Entry(text_lstm, "sst2"),
    }
)
SHAPES["imagenet"] = (224, 224, 3), 1000
