"""Residual networks for 32×32 images, and a plain one of the same shape.

All consist of stages of blocks of two 3×3 convolutions with batch normalisation (He et al.,
"Deep residual learning for image recognition", CVPR 2016, sections 3.3 and 4.2); the
first block of every later stage halves the resolution. If a block changes the shape,
its shortcut is a 1×1 convolution.
"""

import keras
from keras import layers

Shape = tuple[int, int, int]


def resnet10(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build ResNet10, one block per stage, widths 16 to 128: 310,266 parameters, logits.

    The NNSlicer paper (Table 3) gives 300 K parameters and no widths; these come closest.
    """
    return _build("resnet10", input_shape, classes, blocks=1, widths=(16, 32, 64, 128))


def resnet18(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build ResNet18, two blocks per stage, widths 64 to 512: about 11 M parameters, logits."""
    return _build("resnet18", input_shape, classes, blocks=2, widths=(64, 128, 256, 512))


def resnet20(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build ResNet-20 for CIFAR-10, three blocks per stage, widths 16 to 64: logits."""
    return _build("resnet20", input_shape, classes, blocks=3, widths=(16, 32, 64))


def plainnet20(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build PlainNet-20: ResNet-20 without its shortcuts, logits."""
    return _build("plainnet20", input_shape, classes, blocks=3, widths=(16, 32, 64), residual=False)


def resnet10_preactivation(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build the ResNet10 of the NNSlicer paper's program: 309,626 parameters, logits.

    Normalisation and ReLU come before each convolution (He et al., "Identity mappings in deep
    residual networks", ECCV 2016). Every block has a 1×1 shortcut without normalisation; after
    the stem there is none.
    """
    inputs = keras.Input(input_shape, name="input")
    x = _conv(inputs, 16, 3, 1, "stem")
    for stage, width in enumerate((16, 32, 64, 128), start=1):
        x = _preactivation_block(x, width, 1 if stage == 1 else 2, f"stage{stage}_block1")
    x = _norm_relu(x, "final")
    x = layers.GlobalAveragePooling2D(name="average")(x)
    logits = layers.Dense(classes, name="logits")(x)
    return keras.Model(inputs, logits, name="resnet10_preactivation")


def _build(
    name: str,
    input_shape: Shape,
    classes: int,
    *,
    blocks: int,
    widths: tuple[int, ...],
    residual: bool = True,
) -> keras.Model:
    inputs = keras.Input(input_shape, name="input")
    x = _conv_norm(inputs, widths[0], 3, 1, "stem")
    x = layers.ReLU(name="stem_relu")(x)
    for stage, width in enumerate(widths, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _block(x, width, stride, f"stage{stage}_block{block}", residual)
    x = layers.GlobalAveragePooling2D(name="average")(x)
    logits = layers.Dense(classes, name="logits")(x)
    return keras.Model(inputs, logits, name=name)


def _block(
    x: keras.KerasTensor, width: int, stride: int, name: str, residual: bool
) -> keras.KerasTensor:
    y = _conv_norm(x, width, 3, stride, f"{name}_1")
    y = layers.ReLU(name=f"{name}_1_relu")(y)
    y = _conv_norm(y, width, 3, 1, f"{name}_2")
    if residual:
        if x.shape[-1] != width or stride != 1:
            x = _conv_norm(x, width, 1, stride, f"{name}_shortcut")
        y = layers.Add(name=f"{name}_add")([x, y])
    return layers.ReLU(name=f"{name}_relu")(y)


def _preactivation_block(
    x: keras.KerasTensor, width: int, stride: int, name: str
) -> keras.KerasTensor:
    x = _norm_relu(x, f"{name}_1")
    shortcut = _conv(x, width, 1, stride, f"{name}_shortcut")
    y = _conv(x, width, 3, stride, f"{name}_1")
    y = _conv(_norm_relu(y, f"{name}_2"), width, 3, 1, f"{name}_2")
    return layers.Add(name=f"{name}_add")([shortcut, y])


def _conv_norm(
    x: keras.KerasTensor, width: int, kernel: int, stride: int, name: str
) -> keras.KerasTensor:
    return _norm(_conv(x, width, kernel, stride, name), name)


def _norm_relu(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return layers.ReLU(name=f"{name}_relu")(_norm(x, name))


def _conv(
    x: keras.KerasTensor, width: int, kernel: int, stride: int, name: str
) -> keras.KerasTensor:
    return layers.Conv2D(
        width,
        kernel,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)


def _norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)
