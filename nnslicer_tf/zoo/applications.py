"""The papers' large models, from `keras.applications`, with fresh weights and logits."""

from collections.abc import Callable
from typing import Any

import keras

Shape = tuple[int, int, int]


def resnet101(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build ResNet-101: logits. Images are at least 32×32."""
    return _build(keras.applications.ResNet101, input_shape, classes)


def vgg19(input_shape: Shape = (224, 224, 3), classes: int = 1000) -> keras.Model:
    """Build VGG-19: logits. Images are at least 32×32."""
    return _build(keras.applications.VGG19, input_shape, classes)


def mobilenet_v3_small(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build MobileNetV3-Small: logits. Images are at least 32×32, values in [0, 1]."""
    application = keras.applications.MobileNetV3Small
    return _build(application, input_shape, classes, include_preprocessing=False)


def mobilenet_v3_large(input_shape: Shape = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Build MobileNetV3-Large: logits. Images are at least 32×32, values in [0, 1]."""
    application = keras.applications.MobileNetV3Large
    return _build(application, input_shape, classes, include_preprocessing=False)


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
