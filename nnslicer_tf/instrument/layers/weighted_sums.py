"""Dense layers and all kinds of convolutions."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import upstream, windows
from nnslicer_tf.instrument.layers.activations import with_activation
from nnslicer_tf.instrument.layout import DEPTHWISE, INPUTS_OUTPUTS, OUTPUTS_INPUTS
from nnslicer_tf.instrument.operations import Step, Synapses
from nnslicer_tf.instrument.registry import LayerCall, LayerTable, Shape

Sum = Callable[[Any, Any], Any]
Read = Callable[[], Any]  # returns a layer's variable, or None


def require_channels_last(layer: Any, call: LayerCall) -> None:
    """Raise UnsupportedLayerError if a layer's data format is channels_first."""
    given = getattr(layer, "data_format", "channels_last")
    if (given or keras.config.image_data_format()) != "channels_last":
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) has data_format='channels_first'. "
            "Only channels_last is supported: rebuild the model in that format."
        )


def sum_step(
    synapses: Synapses, suffix: str = "", shape: Shape | None = None, apply: Sum | None = None
) -> Step:
    """Return a step that applies the kernel, by `apply` if given, and bias in its input's dtype."""
    apply = apply or synapses.apply

    def compute(x: Any) -> Any:
        outputs = apply(x, ops.cast(synapses.variable(), x.dtype))
        bias = synapses.bias()
        return outputs if bias is None else outputs + ops.cast(bias, x.dtype)

    return Step("weighted_sum", compute, synapses, suffix, shape=shape)


def matrix_synapses(
    name: str,
    read: Read,
    positions: int,
    apply: Sum = ops.matmul,
    bias: Read = lambda: None,
    kind: type[Synapses] = Synapses,
) -> Synapses:
    """Return the synapses of a kernel `(inputs, outputs)` applied at every position."""
    return kind(
        name=name,
        shape=tuple(read().shape),
        groups=1,
        axes=INPUTS_OUTPUTS,
        variable=read,
        bias=bias,
        apply=apply,
        build_taps=lambda: windows.pointwise(positions),
        by_rows=matmul_by_rows if apply is ops.matmul else None,
    )


def matmul_by_rows(x: Any, kernels: Any) -> Any:
    """Return `(rows, …, inputs)` times a matrix `(rows, inputs, outputs)` for each row."""
    between = x.shape[1:-1]
    matrices = ops.reshape(kernels, (-1, *kernels.shape[-2:]))  # of a convolution of size 1, too
    flat = ops.reshape(x, (-1, int(np.prod(between)), x.shape[-1]))
    return ops.reshape(ops.matmul(flat, matrices), (-1, *between, kernels.shape[-1]))


def _dense(layer: layers.Dense, call: LayerCall) -> tuple[Step, ...]:
    positions = int(np.prod(call.input_shapes[0][:-1]))
    synapses = matrix_synapses(call.path, lambda: layer.kernel, positions, bias=lambda: layer.bias)
    return with_activation(sum_step(synapses), layer.activation)


def convolution(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of a convolution, a layer or a namespace with a layer's attributes."""
    require_channels_last(layer, call)

    def apply(x: Any, kernel: Any, convolve: Callable = ops.conv) -> Any:
        x, padding = _padded(layer, x)
        return convolve(x, kernel, tuple(layer.strides), padding, dilation_rate=layer.dilation_rate)

    without_gaps: Sum = apply
    of_groups: Sum = partial(apply, convolve=upstream.grouped_convolution)
    if any(k < s for k, s in zip(layer.kernel_size, layer.strides, strict=True)):
        space, output_space = call.input_shapes[0][:-1], call.output_shape[:-1]
        without_gaps, of_groups = (
            upstream.convolution_without_gaps(
                layer, space, output_space, partial(convolve, padding="valid")
            )
            for convolve in (ops.conv, upstream.grouped_convolution)
        )
    by_rows = upstream.rows_as_groups(of_groups, len(layer.kernel_size))
    if layer.groups == np.prod(layer.kernel_size) == np.prod(layer.strides) == 1:
        by_rows = matmul_by_rows
    synapses = matrix_synapses(call.path, lambda: layer.kernel, 1, without_gaps, lambda: layer.bias)
    taps = _sliding_taps(layer, call)
    synapses = replace(synapses, groups=layer.groups, build_taps=taps, by_rows=by_rows)
    return with_activation(sum_step(synapses, apply=apply), layer.activation)


def depthwise(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of a depthwise convolution, as `convolution` does."""
    kernel, bias = (lambda: layer.kernel), (lambda: layer.bias)
    synapses = _depthwise_synapses(layer, call, call.path, kernel, bias)
    return with_activation(sum_step(synapses), layer.activation)


def _separable(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    kernel = lambda: layer.depthwise_kernel  # noqa: E731
    depthwise = _depthwise_synapses(layer, call, f"{call.path}/depthwise", kernel)
    pointwise = matrix_synapses(
        f"{call.path}/pointwise",
        lambda: layer.pointwise_kernel,
        int(np.prod(call.output_shape[:-1])),
        apply=lambda x, kernel: ops.conv(x, kernel, padding="valid"),
        bias=lambda: layer.bias,
    )
    pointwise = replace(pointwise, by_rows=matmul_by_rows)
    middle = (*call.output_shape[:-1], call.input_shapes[0][-1] * layer.depth_multiplier)
    return (
        sum_step(depthwise, ":depthwise", middle),
        *with_activation(sum_step(pointwise), layer.activation),
    )


def transposed(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of a transposed convolution, as `convolution` does."""
    require_channels_last(layer, call)
    if any(rate != 1 for rate in np.ravel(layer.dilation_rate)):
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) is transposed and dilated "
            f"(dilation_rate={layer.dilation_rate}); only dilation_rate=1 is supported."
        )
    strides, padding = tuple(layer.strides), layer.padding
    space, output_space = call.input_shapes[0][:-1], call.output_shape[:-1]
    apply = partial(
        ops.conv_transpose, strides=strides, padding=padding, output_padding=layer.output_padding
    )
    without_gaps: Sum = apply
    if any(k < s for k, s in zip(layer.kernel_size, strides, strict=True)):
        convolve = partial(ops.conv_transpose, padding="valid")
        without_gaps = upstream.transposed_without_gaps(layer, space, output_space, convolve)
    synapses = matrix_synapses(call.path, lambda: layer.kernel, 1, without_gaps, lambda: layer.bias)
    taps = partial(windows.transposed, space, layer.kernel_size, strides, padding, output_space)
    synapses = replace(synapses, axes=OUTPUTS_INPUTS, build_taps=taps)
    return with_activation(sum_step(synapses, apply=apply), layer.activation)


def _depthwise_synapses(
    layer: Any, call: LayerCall, name: str, read: Read, bias: Read = lambda: None
) -> Synapses:
    require_channels_last(layer, call)

    def apply(x: Any, kernel: Any) -> Any:
        x, padding = _padded(layer, x)
        return ops.depthwise_conv(
            x, kernel, tuple(layer.strides), padding, dilation_rate=layer.dilation_rate
        )

    groups, taps = call.input_shapes[0][-1], _sliding_taps(layer, call)
    synapses = matrix_synapses(name, read, 1, apply, bias)
    by_rows = upstream.rows_as_groups(apply, len(layer.kernel_size), depthwise=True)
    if max(layer.strides) > 1 < max(layer.dilation_rate):  # Keras needs the number of channels
        by_rows = None
    return replace(synapses, groups=groups, axes=DEPTHWISE, build_taps=taps, by_rows=by_rows)


def _sliding_taps(layer: Any, call: LayerCall) -> Callable[[], np.ndarray]:
    space = call.input_shapes[0][:-1]
    return lambda: windows.sliding(
        space, layer.kernel_size, layer.strides, layer.padding, layer.dilation_rate
    )


def _padded(layer: Any, x: Any) -> tuple[Any, str]:
    """Pad the input of a causal or dilated convolution; return it with the mode that remains.

    TensorFlow pads a dilated one only for a number of channels that is known when it is compiled.
    """
    is_causal, reach = layer.padding == "causal", np.subtract(layer.kernel_size, 1)
    reach = (reach * layer.dilation_rate).tolist()
    is_dilated = layer.padding == "same" and max(layer.dilation_rate) > max(layer.strides) == 1
    if not (is_causal or is_dilated):
        return x, layer.padding
    sides = [[n, 0] if is_causal else [n // 2, n - n // 2] for n in reach]
    return ops.pad(x, [[0, 0], *sides, [0, 0]]), "valid"


LAYERS: LayerTable = {
    layers.Dense: _dense,
    **dict.fromkeys((layers.Conv1D, layers.Conv2D, layers.Conv3D), convolution),
    **dict.fromkeys((layers.DepthwiseConv1D, layers.DepthwiseConv2D), depthwise),
    **dict.fromkeys((layers.SeparableConv1D, layers.SeparableConv2D), _separable),
    **dict.fromkeys(
        (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose), transposed
    ),
}
