"""Layers that only move values: pure index maps.

The maps are found by running the layer on the indices of its inputs
(`nnslicer_tf.instrument.index_maps`), so a user-defined routing layer needs only
`register_layer(MyLayer, lambda layer, call: [Step("routing", layer.call)])`.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.operations import Step

OperationsFunction = Callable[[keras.Operation, LayerCall], tuple[Step, ...]]


def _move(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    return (Step("routing", layer.call),)


def _identity(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Pass values through: dropout, noise and augmentation do nothing at inference."""
    return (Step("routing", lambda x: x),)


def passes_through(operations_fn: Callable[..., Any]) -> bool:
    """Whether a layer with these operations does nothing at inference."""
    return operations_fn is _identity


def _nothing(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    """Return no steps: the operation's output is its input."""
    return ()


def _concatenate(layer: layers.Concatenate, call: LayerCall) -> tuple[Step, ...]:
    return (Step("routing", lambda *tensors: ops.concatenate(tensors, axis=layer.axis)),)


def _concatenate_operation(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    return (Step("routing", lambda *tensors: operation.call(list(tensors))),)


def _index(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    """Return the step of `x[…]` with constant indices that do not touch the batch axis."""
    key = call.constants[1]
    batch = key[0] if isinstance(key, tuple) else key
    if batch is not Ellipsis and batch != slice(None):
        raise UnsupportedLayerError(
            f"Operation '{call.path}' indexes the batch axis with {batch!r}, so that its output "
            "mixes samples; the analyses require samples to be independent."
        )
    return (Step("routing", lambda x: operation.call(x, key)),)


def _up_sampling(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    interpolation = getattr(layer, "interpolation", "nearest")
    if interpolation != "nearest":
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) interpolates "
            f"(interpolation='{interpolation}'); only 'nearest' has a rule."
        )
    return _move(layer, call)


def _center_crop(layer: layers.CenterCrop, call: LayerCall) -> tuple[Step, ...]:
    """Return a step that keeps its input's dtype; the layer itself computes in its own."""
    axes = (1, 2) if layer.data_format == "channels_last" else (2, 3)
    extents = [call.input_shapes[0][axis - 1] for axis in axes]
    room = [
        extent - kept for extent, kept in zip(extents, (layer.height, layer.width), strict=True)
    ]
    if min(room) < 0:
        raise UnsupportedLayerError(
            f"Layer '{call.path}' (CenterCrop) enlarges images of {extents[0]} × {extents[1]}, and "
            "so interpolates between pixels; apply it to the data, before the model."
        )
    parts = [slice(None)] * 4
    for axis, spare, kept in zip(axes, room, (layer.height, layer.width), strict=True):
        parts[axis] = slice(spare // 2, spare // 2 + kept)
    return (Step("routing", lambda x: x[tuple(parts)]),)


LAYERS: dict[type | str, OperationsFunction] = {
    layers.CenterCrop: _center_crop,
    **dict.fromkeys(
        (
            *(layers.Flatten, layers.Reshape, layers.Permute, layers.RepeatVector),
            *(layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D),
            *(layers.Cropping1D, layers.Cropping2D, layers.Cropping3D),
        ),
        _move,
    ),
    **dict.fromkeys((layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D), _up_sampling),
    **dict.fromkeys(
        (
            *(layers.Identity, layers.Dropout, layers.AlphaDropout, layers.ActivityRegularization),
            *(layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D),
            *(layers.GaussianDropout, layers.GaussianNoise),
            *(layers.RandomBrightness, layers.RandomContrast, layers.RandomFlip),
            *(layers.RandomRotation, layers.RandomTranslation, layers.RandomZoom),
            "StochasticDepth",
            *("AugMix", "CutMix", "MixUp", "RandAugment", "RandomColorDegeneration"),
            *("RandomColorJitter", "RandomElasticTransform", "RandomErasing", "RandomGaussianBlur"),
            *("RandomGrayscale", "RandomHue", "RandomInvert", "RandomPerspective"),
            *("RandomPosterization", "RandomSaturation", "RandomSharpness", "RandomShear"),
        ),
        _identity,
    ),
    "ConvertToTensor": _nothing,  # Keras inserts it between a function and a functional model
    layers.Concatenate: _concatenate,
    "Concatenate": _concatenate_operation,
    "Stack": _concatenate_operation,
    "GetItem": _index,
    # Their constant arguments are attributes of the operation, and are not passed to `call`.
    **dict.fromkeys(
        (
            *("Reshape", "Transpose", "Squeeze", "ExpandDims", "Flip", "Repeat", "Moveaxis"),
            *("Swapaxes", "Ravel"),
        ),
        _move,
    ),
}
