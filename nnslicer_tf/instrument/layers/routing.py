"""Layers that only move values.

Running a layer on indices gives its index map (`nnslicer_tf.instrument.index_maps`), so a custom
one needs only `register_layer(MyLayer, lambda layer, call: [Step("routing", layer.call)])`.
"""

from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.operations import Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable


def identity(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Pass values through: dropout, noise and augmentation do nothing at inference."""
    return (Step("routing", lambda x: x),)


def _move(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    return (Step("routing", layer.call),)


def _index(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    """Return the step of `x[…]` with constant indices that keep the batch axis."""
    key = call.arguments["key"]
    if isinstance(key, list) and any(p is None or p is ... or isinstance(p, slice) for p in key):
        key = tuple(key)  # Keras reads the tuple back from a file as a list
    batch = key[0] if isinstance(key, tuple) else key
    if batch is not Ellipsis and batch != slice(None):
        raise UnsupportedLayerError(
            f"Operation '{call.path}' indexes the batch axis with {batch!r}, so that its output "
            "mixes samples; the analyses require samples to be independent."
        )
    return (Step("routing", lambda x: operation.call(x, key)),)


def _center_crop(layer: layers.CenterCrop, call: LayerCall) -> tuple[Step, ...]:
    """Return a crop in the dtype of its input; the layer itself would cast to its own."""
    parts = [slice(None)] * 4
    axes = (1, 2) if layer.data_format == "channels_last" else (2, 3)
    for axis, extent in zip(axes, (layer.height, layer.width), strict=True):
        spare = call.input_shapes[0][axis - 1] - extent
        if spare < 0:
            size = " × ".join(str(call.input_shapes[0][axis - 1]) for axis in axes)
            raise UnsupportedLayerError(
                f"Layer '{call.path}' (CenterCrop) enlarges images of {size}, and so interpolates "
                "between pixels; apply it to the data, before the model."
            )
        parts[axis] = slice(spare // 2, spare // 2 + extent)
    return (Step("routing", lambda x: x[tuple(parts)]),)


LAYERS: LayerTable = {
    layers.CenterCrop: _center_crop,
    **dict.fromkeys(
        (
            *(layers.Flatten, layers.Reshape, layers.Permute, layers.RepeatVector),
            *(layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D),
            *(layers.Cropping1D, layers.Cropping2D, layers.Cropping3D),
            *(layers.UpSampling1D, layers.UpSampling3D),
        ),
        _move,
    ),
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
        identity,
    ),
    # Keras inserts it between a function and a functional model.
    "ConvertToTensor": lambda operation, call: (),
    layers.Concatenate: lambda layer, call: (
        Step("routing", lambda *tensors: ops.concatenate(tensors, axis=layer.axis)),
    ),
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
