"""VGG-16 for 32×32 images (based on Simonyan and Zisserman, ICLR 2015)."""

import keras
from keras import layers

_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16(input_shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build 13 convolutions with batch normalisation and dense layers 512, 512: logits.

    About 15 M parameters. The original has no normalisation and dense layers of 4,096,
    for 224×224 images. The last pooling leaves one pixel of a 32×32 image; for larger images
    the pixels are averaged, so that the weights fit any size (`Recipe.sizes`).
    """
    x = inputs = keras.Input(input_shape, name="input")
    for block, (width, convolutions) in enumerate(_BLOCKS, start=1):
        for i in range(1, convolutions + 1):
            x = _conv_norm(x, width, f"block{block}_{i}")
        x = layers.MaxPooling2D(padding="same", name=f"block{block}_pool")(x)
    x = layers.GlobalAveragePooling2D(name="average")(x)
    for i in (1, 2):
        x = layers.Dense(512, kernel_initializer="he_normal", name=f"dense{i}")(x)
        x = layers.ReLU(name=f"dense{i}_relu")(x)
        x = layers.Dropout(0.5, name=f"dropout{i}")(x)
    logits = layers.Dense(classes, name="logits")(x)
    return keras.Model(inputs, logits, name="vgg16")


def _conv_norm(x: keras.KerasTensor, width: int, name: str) -> keras.KerasTensor:
    x = layers.Conv2D(
        width,
        3,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x)
