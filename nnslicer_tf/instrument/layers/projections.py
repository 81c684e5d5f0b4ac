"""Projections: `EinsumDense`, any contraction of an input with a kernel.

A projection is the same weighted sum at every position. Routing operations reorder its input and
output to (positions, groups, channels) where necessary, so that the sum is that of a dense layer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.activations import with_activation
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.rewrites import spelled
from nnslicer_tf.instrument.layers.weighted_sums import sum_step
from nnslicer_tf.instrument.operations import Source, Step, Synapses
from nnslicer_tf.instrument.registry import LayerTable, Shape


class Projection:
    """The steps of an `EinsumDense` layer; shapes without the batch axis.

    The letters of its equation, except the batch axis, are of four kinds: *positions* are in input
    and output only; *groups* are also in the kernel, so that each index has its own weights;
    *summed* axes are in input and kernel; *free* axes in kernel and output. Raises
    UnsupportedLayerError if the equation is not a projection of single samples.
    """

    def __init__(
        self,
        layer: layers.EinsumDense,
        name: str,
        input_shape: Sequence[int],
        output_shape: Sequence[int],
    ) -> None:
        ranks = (len(input_shape) + 1, len(layer.kernel.shape))
        (inputs, kernel), outputs = spelled(layer.equation, ranks)
        batch, inputs, begins = inputs[:1], inputs[1:], outputs[:1]
        outputs = outputs[1:]
        self._positions = "".join(a for a in outputs if a in inputs and a not in kernel)
        self._groups = "".join(a for a in outputs if a in inputs and a in kernel)
        self._summed = "".join(a for a in inputs if a in kernel and a not in outputs)
        self._free = "".join(a for a in outputs if a in kernel and a not in inputs)
        order = self._positions + self._groups
        is_projection = (
            begins == batch
            and batch not in kernel + inputs
            and len({*inputs}) == len(inputs) == len(order + self._summed)
            and len(outputs) == len(order + self._free)
            and len(kernel) == len(self._groups + self._summed + self._free)
        )
        if not (is_projection and self._summed and self._free):
            raise UnsupportedLayerError(
                f"Layer '{name}' (EinsumDense) computes '{layer.equation}', which is not a "
                "projection: every axis of the kernel must be summed over, or be an axis of the "
                "output, and the batch axis must come first."
            )
        self._layer, self._name = layer, name
        self._inputs, self._kernel, self._outputs = inputs, kernel, outputs
        self._extents = dict(zip(inputs, input_shape, strict=True))
        self._extents |= dict(zip(outputs, output_shape, strict=True))
        self._output_shape = tuple(output_shape)
        # The bias spans as many of the last axes of the output as it has axes.
        shape = () if layer.bias is None else tuple(layer.bias.shape)
        self._bias_axes = outputs[len(outputs) - len(shape) :]
        pairs = zip(self._bias_axes, shape, strict=True)
        self._bias_varies = any(a in self._positions and extent > 1 for a, extent in pairs)

    def steps(self, suffix: str = "", source: Source = 0) -> tuple[Step, ...]:
        """Return the steps from `source`; `suffix` is that of the last one."""
        layer, positions = self._layer, self._shape(self._positions)
        head = []
        order = self._positions + self._groups + self._summed
        if self._inputs != order or len(self._groups + self._summed) > 1:
            axes = (0, *(self._inputs.index(a) + 1 for a in order))
            moved = (*positions, self._size(self._groups + self._summed))

            def gather(x: Any) -> Any:
                return ops.reshape(ops.transpose(x, axes), (-1, *moved))

            head.append(Step("routing", gather, None, f"{suffix}:in", (source,), moved))
            source = f"{suffix}:in"
        shape = (*positions, self._size(self._groups + self._free))
        tail = [replace(sum_step(self.synapses(), ":sum", shape), sources=(source,))]
        order = self._positions + self._groups + self._free
        if shape != self._output_shape or order != self._outputs:
            parts = self._shape(order)
            places = (0, *(order.index(a) + 1 for a in self._outputs))

            def unfold(x: Any) -> Any:
                return ops.transpose(ops.reshape(x, (-1, *parts)), places)

            tail.append(Step("routing", unfold, None, ":axes", shape=self._output_shape))
        if self._bias_varies:
            tail.append(affine_step(1.0, lambda: layer.bias, ":bias", None, self._output_shape))
        tail.extend(with_activation(replace(tail.pop(), suffix=""), layer.activation))
        return (*head, *(replace(step, suffix=suffix + step.suffix) for step in tail))

    def synapses(self) -> Synapses:
        """Return the kernel's synapses; inputs and outputs are on the last axis."""
        layer = self._layer
        order = tuple(self._kernel.index(a) for a in self._summed + self._groups + self._free)
        groups, summed, free = map(self._size, (self._groups, self._summed, self._free))
        positions = self._shape(self._positions)

        def apply(x: Any, kernel: Any) -> Any:
            if not self._groups:
                return ops.matmul(x, ops.reshape(ops.transpose(kernel, order), (summed, free)))
            weights = ops.reshape(ops.transpose(kernel, order), (summed, groups, free))
            x = ops.reshape(x, (-1, *positions, groups, summed))
            outputs = ops.einsum("...gi,igo->...go", x, weights)
            return ops.reshape(outputs, (-1, *positions, groups * free))

        def by_rows(x: Any, kernels: Any) -> Any:
            weights = ops.transpose(kernels, (0, *(axis + 1 for axis in order)))
            weights = ops.reshape(weights, (-1, summed, groups, free))
            flat = ops.reshape(x, (-1, int(np.prod(positions)), groups, summed))
            outputs = ops.einsum("rpgi,rigo->rpgo", flat, weights)
            return ops.reshape(outputs, (-1, *positions, groups * free))

        return Synapses(
            name=self._name,
            shape=tuple(layer.kernel.shape),
            groups=groups,
            axes="einsum",
            variable=lambda: layer.kernel,
            bias=self._bias_vector,
            apply=apply,
            build_taps=lambda: windows.pointwise(int(np.prod(positions))),
            order=order,
            summed=len(self._summed),
            by_rows=by_rows,
        )

    def _bias_vector(self) -> Any:
        """Return the bias `(outputs,)`; None if there is none or it varies by position."""
        bias, letters = self._layer.bias, self._groups + self._free
        if bias is None or self._bias_varies:
            return None
        if self._bias_axes == letters and len(letters) == 1:
            return bias  # the variable itself
        extents = dict(zip(self._bias_axes, bias.shape, strict=True))
        names = [a for a in self._bias_axes if a in letters]
        values = ops.reshape(bias, [extents[a] for a in names])
        values = ops.transpose(values, [names.index(a) for a in letters if a in names])
        values = ops.reshape(values, [extents[a] if a in names else 1 for a in letters])
        return ops.reshape(ops.broadcast_to(values, self._shape(letters)), (-1,))

    def _shape(self, letters: str) -> Shape:
        return tuple(self._extents[a] for a in letters)

    def _size(self, letters: str) -> int:
        return int(np.prod(self._shape(letters)))


LAYERS: LayerTable = {
    layers.EinsumDense: lambda layer, call: Projection(
        layer, call.path, call.input_shapes[0], call.output_shape
    ).steps()
}
