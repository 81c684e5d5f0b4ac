"""The papers' large models, from `keras.applications`, with fresh weights and logits."""

from collections.abc import Callable
from typing import Any

import keras

Shape = tuple[int, int, int]

_MOBILE_SIDE = 96  # pixels; MobileNetV3 halves an image five times, so 32 would leave a single one
_MOBILE_MOMENTUM = 0.99  # of batch statistics; Keras has 0.999 for ImageNet's long epochs


def resnet101(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build ResNet-101: logits. Images are at least 32×32."""
    return _build(keras.applications.ResNet101, input_shape, classes)


def vgg19(input_shape: Shape = (224, 224, 3), classes: int = 1000) -> keras.Model:
    """Build VGG-19: logits. Images are at least 32×32."""
    return _build(keras.applications.VGG19, input_shape, classes)


def mobilenet_v3_small(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build MobileNetV3-Small: logits. Images below 96×96 are enlarged; values in [0, 1]."""
    return _build_mobile(keras.applications.MobileNetV3Small, input_shape, classes)


def mobilenet_v3_large(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build MobileNetV3-Large: logits. Images below 96×96 are enlarged; values in [0, 1]."""
    return _build_mobile(keras.applications.MobileNetV3Large, input_shape, classes)


def _build_mobile(
    application: Callable[..., keras.Model], input_shape: Shape, classes: int
) -> keras.Model:
    """Build a network whose first layer repeats the pixels of images below 96×96."""
    inputs = keras.Input(input_shape, name="image")
    times = -(-_MOBILE_SIDE // min(input_shape[:2]))
    large = keras.layers.UpSampling2D(times, name="enlarged")(inputs) if times > 1 else inputs
    options = {"input_tensor": large, "include_preprocessing": False}
    network = _build(application, large.shape[1:], classes, **options)
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = _MOBILE_MOMENTUM
    return keras.Model(inputs, network.output, name=network.name)


def _build(
    application: Callable[..., keras.Model], input_shape: Shape, classes: int, **options: Any
) -> keras.Model:
    return application(
        weights=None,
        input_shape=input_shape,
        classes=classes,
        classifier_activation=None,
        **options,
    )
