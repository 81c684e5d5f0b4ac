"""Dense layers and all kinds of convolutions."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.activations import with_activation
from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.layout import DEPTHWISE, INPUTS_OUTPUTS, OUTPUTS_INPUTS
from nnslicer_tf.instrument.operations import Step, Synapses
from nnslicer_tf.instrument.upstream import convolution_without_gaps


def require_channels_last(layer: keras.Layer, call: LayerCall) -> None:
    """Check that a layer's channels are on the last axis.

    Raises:
        UnsupportedLayerError: if the layer's data format is channels_first.
    """
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) has data_format='channels_first'. "
            "Only channels_last is supported: rebuild the model in that format."
        )


def _dense(layer: layers.Dense, call: LayerCall) -> tuple[Step, ...]:
    positions = int(np.prod(call.input_shapes[0][:-1]))
    synapses = _synapses(layer, call.path, ops.matmul, lambda: windows.pointwise(positions))
    return with_activation(sum_step(synapses), layer.activation)


def _convolution(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    require_channels_last(layer, call)

    def apply(x: Any, kernel: Any) -> Any:
        x, padding = _padded(layer, x)
        return ops.conv(x, kernel, tuple(layer.strides), padding, dilation_rate=layer.dilation_rate)

    safe: Callable[[Any, Any], Any] = apply
    if any(k < s for k, s in zip(layer.kernel_size, layer.strides, strict=True)):
        safe = convolution_without_gaps(
            call.input_shapes[0][:-1],
            call.output_shape[:-1],
            layer.kernel_size,
            layer.strides,
            layer.padding,
            lambda x, kernel, strides: ops.conv(x, kernel, strides, "valid"),
        )
    taps = _sliding_taps(layer, call)
    synapses = _synapses(layer, call.path, safe, taps, groups=layer.groups)
    return with_activation(sum_step(synapses, apply=apply), layer.activation)


def _depthwise(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    require_channels_last(layer, call)
    synapses = _synapses(
        layer,
        call.path,
        _depthwise_sum(layer),
        _sliding_taps(layer, call),
        groups=call.input_shapes[0][-1],
        axes=DEPTHWISE,
    )
    return with_activation(sum_step(synapses), layer.activation)


def _separable(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Return two weighted sums, each with its own kernel."""
    require_channels_last(layer, call)
    channels = call.input_shapes[0][-1]
    positions = int(np.prod(call.output_shape[:-1]))
    depthwise = Synapses(
        name=f"{call.path}/depthwise",
        shape=tuple(layer.depthwise_kernel.shape),
        groups=channels,
        axes=DEPTHWISE,
        variable=lambda: layer.depthwise_kernel,
        bias=lambda: None,
        apply=_depthwise_sum(layer),
        build_taps=_sliding_taps(layer, call),
    )
    pointwise = Synapses(
        name=f"{call.path}/pointwise",
        shape=tuple(layer.pointwise_kernel.shape),
        groups=1,
        axes=INPUTS_OUTPUTS,
        variable=lambda: layer.pointwise_kernel,
        bias=lambda: layer.bias,
        apply=lambda x, kernel: ops.conv(x, kernel, padding="valid"),
        build_taps=lambda: windows.pointwise(positions),
    )
    middle = (*call.output_shape[:-1], channels * layer.depth_multiplier)
    return (
        sum_step(depthwise, ":depthwise", middle),
        *with_activation(sum_step(pointwise), layer.activation),
    )


def _transposed(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    require_channels_last(layer, call)
    if any(rate != 1 for rate in np.ravel(layer.dilation_rate)):
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) is transposed and dilated "
            f"(dilation_rate={layer.dilation_rate}); only dilation_rate=1 is supported."
        )

    def apply(x: Any, kernel: Any) -> Any:
        return ops.conv_transpose(
            x,
            kernel,
            tuple(layer.strides),
            padding=layer.padding,
            output_padding=layer.output_padding,
        )

    def taps() -> np.ndarray:
        return windows.transposed(
            call.input_shapes[0][:-1],
            layer.kernel_size,
            layer.strides,
            layer.padding,
            call.output_shape[:-1],
        )

    synapses = _synapses(layer, call.path, apply, taps, axes=OUTPUTS_INPUTS)
    return with_activation(sum_step(synapses), layer.activation)


def sum_step(
    synapses: Synapses,
    suffix: str = "",
    shape: tuple[int, ...] | None = None,
    apply: Callable[[Any, Any], Any] | None = None,
) -> Step:
    """Return the step that applies the current kernel and bias, in the dtype of its input.

    Args:
        synapses: The synapses.
        suffix: The step's suffix.
        shape: The step's shape.
        apply: The weighted sum as the layer computes it, if it is not `synapses.apply`.
    """
    apply = apply or synapses.apply

    def compute(x: Any) -> Any:
        outputs = apply(x, ops.cast(synapses.variable(), x.dtype))
        bias = synapses.bias()
        return outputs if bias is None else outputs + ops.cast(bias, x.dtype)

    return Step("weighted_sum", compute, synapses, suffix, shape=shape)


def _synapses(
    layer: keras.Layer,
    name: str,
    apply: Callable[[Any, Any], Any],
    build_taps: Callable[[], np.ndarray],
    groups: int = 1,
    axes: str = INPUTS_OUTPUTS,
) -> Synapses:
    return Synapses(
        name=name,
        shape=tuple(layer.kernel.shape),
        groups=groups,
        axes=axes,
        variable=lambda: layer.kernel,
        bias=lambda: layer.bias,
        apply=apply,
        build_taps=build_taps,
    )


def _sliding_taps(layer: keras.Layer, call: LayerCall) -> Callable[[], np.ndarray]:
    space = call.input_shapes[0][:-1]
    return lambda: windows.sliding(
        space, layer.kernel_size, layer.strides, layer.padding, layer.dilation_rate
    )


def _depthwise_sum(layer: keras.Layer) -> Callable[[Any, Any], Any]:
    def apply(x: Any, kernel: Any) -> Any:
        x, padding = _padded(layer, x)
        return ops.depthwise_conv(
            x, kernel, tuple(layer.strides), padding, dilation_rate=layer.dilation_rate
        )

    return apply


def _padded(layer: keras.Layer, x: Any) -> tuple[Any, str]:
    """Pad the input of a causal convolution; return it and the padding mode still to apply."""
    if layer.padding != "causal":
        return x, layer.padding
    reach = (layer.kernel_size[0] - 1) * layer.dilation_rate[0]
    return ops.pad(x, [[0, 0], [reach, 0], [0, 0]]), "valid"


LAYERS: dict[type | str, Callable[[keras.Operation, LayerCall], tuple[Step, ...]]] = {
    layers.Dense: _dense,
    **dict.fromkeys((layers.Conv1D, layers.Conv2D, layers.Conv3D), _convolution),
    **dict.fromkeys((layers.DepthwiseConv1D, layers.DepthwiseConv2D), _depthwise),
    **dict.fromkeys((layers.SeparableConv1D, layers.SeparableConv2D), _separable),
    **dict.fromkeys(
        (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose), _transposed
    ),
}
